"""Torch's threads, where they are in the way: of compiled kernels that need the cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from paceline.machine import most_threads

_SHARED = 32_768
"""Numbers that torch computes with on one thread whatever it has."""
_AS_IT_IS = nullcontext()


def usable() -> int:
    """How many torch is set to use, but no more than run at once."""
    return min(torch.get_num_threads(), most_threads())


def quiet(numbers: int) -> AbstractContextManager[None]:
    """`alone` for whoever computes with so many numbers at once, a row of logits say, if torch would share that out."""
    return alone() if numbers > _SHARED else _AS_IT_IS


@contextmanager
def alone() -> Iterator[None]:
    """Inside, torch computes on the calling thread alone.

    For some milliseconds after an operation that was shared out, the threads that took part spin, and kernels that come next miss
    the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
