"""Torch's threads, where they are in the way: of compiled kernels that need the cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def alone(wanted: bool = True) -> Iterator[None]:
    """Inside, torch computes on the calling thread alone, if that is wanted.

    It would share out every operation on more than 32,768 numbers, which a row of a large vocabulary has. For some milliseconds
    after it the threads that took part spin, and kernels that come next miss the cores.
    """
    threads = torch.get_num_threads()
    if not wanted or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
