"""Lookups: how the search of texts is compiled. Kept on disk, it runs beside other threads, and of what only compiled code calls
(`helper`) nothing is made that Python could call."""

from __future__ import annotations

from typing import Any

from paceline.kernels.native.memory import helper as helper

import numba  # isort: skip  (after `paceline.kernels.native`, which says for what processor)

compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")
