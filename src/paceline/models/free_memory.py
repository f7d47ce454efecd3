"""What was freed goes back to the system: packing leaves holes the size of a layer, which the C library would keep for later."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    """glibc's `malloc_trim`, or None where the C library has none."""
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    # Windows has no library of no name
    except (OSError, TypeError):
        return None


def return_free_memory() -> None:
    """A millisecond or so; a no-op where it cannot be done."""
    trim = _trim()
    if trim is not None:
        trim(0)
