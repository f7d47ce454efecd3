"""Clock: the time by which steps are measured. It is stopped while something is made once for many later steps.

Recording a forward for a GPU takes as long as many steps. A policy that learns the cost of drafts from measured steps would
overestimate it just when they are drafted for the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

_stood_s = 0.0


def now() -> float:
    """Seconds; only differences between readings have a meaning."""
    return perf_counter() - _stood_s


@contextmanager
def standing_still() -> Iterator[None]:
    """A context during which the clock is stopped. Not to be nested."""
    global _stood_s
    began = perf_counter()
    try:
        yield
    finally:
        _stood_s += perf_counter() - began
