"""Return freed memory to the system: packing frees blocks as large as a layer, which the C library would otherwise keep."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    """glibc's `malloc_trim`, or None if the C library has no such function."""
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    # on Windows, CDLL needs a library name
    except (OSError, TypeError):
        return None


def return_free_memory() -> None:
    """Takes about a millisecond; a no-op where `malloc_trim` is not available."""
    trim = _trim()
    if trim is not None:
        trim(0)
