"""Reading: how long this machine takes to read as many bytes as the weights have that every forward reads; the floor under it.

Plain loads of eight streams, exclusive or, on as many threads: what was fastest of one to sixteen streams and of torch's sum.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from paceline.kernels.native.arena import Arena
from paceline.kernels.native.memory import PART, carray, pointer
from paceline.kernels.native.threads import spread

import numba  # isort: skip  (after `paceline.kernels.native`, which says for what processor)

_RECORD = np.dtype([("memory", np.int64), ("words", np.int64), ("found", np.int64)])
_STREAMS, _BYTES = 8, 8


class Reading:
    """count: bytes, of memory of its own on huge pages. Called with any number of rows, as a forward is; gives seconds."""

    def __init__(self, count: int, threads: int) -> None:
        self._threads, words = threads, count // (_BYTES * _STREAMS * threads)
        self.bytes = words * _BYTES * _STREAMS * threads
        # touched, or all of it would be the one page of zeros
        self.memory = Arena().empty(self.bytes).fill_(1)
        self._found = np.zeros(threads, np.int64)
        self._record = np.array([(self.memory.data_ptr(), words, self._found.ctypes.data)], _RECORD)
        self._part: Any = numba.cfunc(PART, nogil=True)(_read)

    @property
    def found(self) -> int:
        """What was read, exclusive or."""
        return int(np.bitwise_xor.reduce(self._found))

    def __call__(self, rows: int) -> float:
        began = perf_counter()
        spread(self._part.address, self._threads, self._record.ctypes.data)
        return perf_counter() - began


def _read(thread: Any, address: Any) -> None:
    record = carray(pointer(address), 1, _RECORD)
    words = record[0].words
    memory = carray(pointer(record[0].memory + thread * _BYTES * _STREAMS * words), _STREAMS * words, np.int64)
    a, b, c, d = memory[:words], memory[words : 2 * words], memory[2 * words : 3 * words], memory[3 * words : 4 * words]
    e, f, g, h = memory[4 * words : 5 * words], memory[5 * words : 6 * words], memory[6 * words : 7 * words], memory[7 * words :]
    first = second = third = fourth = 0
    for at in range(words):
        first ^= a[at] ^ e[at]
        second ^= b[at] ^ f[at]
        third ^= c[at] ^ g[at]
        fourth ^= d[at] ^ h[at]
    carray(pointer(record[0].found), thread + 1, np.int64)[thread] = first ^ second ^ third ^ fourth
