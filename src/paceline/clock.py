"""Clock: the time by which steps are judged. It stands still while something is made once for many steps to come.

To record a forward for a GPU takes as long as many steps. Whoever learns from steps what drafts cost would hold them to be dear
just when they are drafted for the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

_stood_s = 0.0


def now() -> float:
    """Seconds; of two readings the difference counts."""
    return perf_counter() - _stood_s


@contextmanager
def standing_still() -> Iterator[None]:
    """What takes place within takes no time. Not to be nested."""
    global _stood_s
    began = perf_counter()
    try:
        yield
    finally:
        _stood_s += perf_counter() - began
