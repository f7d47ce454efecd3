"""Kernel for `bench/reading`: memory bandwidth, by plain loads of eight streams and exclusive or, the fastest way to read."""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.layout import READING
from paceline.kernels.native.memory import carray, pointer

_STREAMS, _BYTES = 8, 8


def read(thread, address):
    """One thread's part of the measurement. address: of a READING record (`layout`)."""
    record = carray(pointer(address), 1, READING)
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
