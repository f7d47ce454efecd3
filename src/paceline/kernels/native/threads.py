"""Threads: one part on each of Numba's threads, all of them at once."""

from __future__ import annotations

from functools import cache
from typing import Any

from paceline.kernels.native.compiled import SOURCES
from paceline.kernels.native.memory import run_part

import numba  # isort: skip  (after `vectors`)
from numba import types  # isort: skip


def most_threads() -> int:
    """Threads that can run at once: parts wait for one another, so each needs one of its own."""
    return numba.config.NUMBA_NUM_THREADS


@cache
def spread() -> Any:
    """spread(part, threads, record): call the PART at an address on `threads` threads. Releases the GIL."""
    return _spread(SOURCES)


def _spread(sources: str) -> Any:
    def all_threads(part, threads, record):
        sources  # noqa: B018  (part of what the cache is keyed by)
        for thread in numba.prange(threads):
            run_part(part, thread, record)

    return numba.njit(types.void(*[types.int64] * 3), parallel=True, nogil=True, cache=True)(all_threads)
