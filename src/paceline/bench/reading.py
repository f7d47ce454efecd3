"""Reading: time to read as many bytes as a forward pass reads of the weights, a lower bound for a forward pass.

Each thread reads eight streams with plain loads and XORs them: the fastest of one to sixteen streams and of torch's sum.
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
    """count: bytes to read, in its own memory on huge pages. Called like a forward pass, with any number of rows; returns
    seconds."""

    def __init__(self, count: int, threads: int) -> None:
        self._threads, words = threads, count // (_BYTES * _STREAMS * threads)
        self.bytes = words * _BYTES * _STREAMS * threads
        # written to, or all of it would map to one page of zeros
        self.memory = Arena().empty(self.bytes).fill_(1)
        self._found = np.zeros(threads, np.int64)
        # compile before anything is timed
        self._part = READ.address
        self._record = np.array([(self.memory.data_ptr(), words, self._found.ctypes.data)], READING)

    @property
    def found(self) -> int:
        """The XOR of all that was read."""
        return int(np.bitwise_xor.reduce(self._found))

    def __call__(self, rows: int) -> float:
        began = perf_counter()
        spread(self._part, self._threads, self._record.ctypes.data)
        return perf_counter() - began
