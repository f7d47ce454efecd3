"""Reading: how long this machine takes to read as many bytes as the weights have that every forward reads; the floor under it.

Plain loads of eight streams, exclusive or, on as many threads: what was fastest of one to sixteen streams and of torch's sum.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from paceline.kernels.native.arena import Arena
from paceline.kernels.native.entries import READ
from paceline.kernels.native.layout import READING
from paceline.kernels.native.threads import spread

_STREAMS, _BYTES = 8, 8


class Reading:
    """count: bytes, of memory of its own on huge pages. Called with any number of rows, as a forward is; gives seconds."""

    def __init__(self, count: int, threads: int) -> None:
        self._threads, words = threads, count // (_BYTES * _STREAMS * threads)
        self.bytes = words * _BYTES * _STREAMS * threads
        # touched, or all of it would be the one page of zeros
        self.memory = Arena().empty(self.bytes).fill_(1)
        self._found = np.zeros(threads, np.int64)
        # compiled before anything is timed
        self._part = READ.address
        self._record = np.array([(self.memory.data_ptr(), words, self._found.ctypes.data)], READING)

    @property
    def found(self) -> int:
        """What was read, exclusive or."""
        return int(np.bitwise_xor.reduce(self._found))

    def __call__(self, rows: int) -> float:
        began = perf_counter()
        spread(self._part, self._threads, self._record.ctypes.data)
        return perf_counter() - began
