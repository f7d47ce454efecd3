"""Telling: of rows of logits how likely one token each is, and which are the likeliest (`tellings`)."""

from __future__ import annotations

import math

import numpy as np

from paceline.kernels.native.choosing import likeliest, sum_of
from paceline.kernels.native.memory import helper
from paceline.kernels.successors.largest import largest_of

_f = np.float32


@helper
def _larger(row, value):
    number = np.int32(0)
    for token in range(len(row)):
        number = np.int32(number + np.int32(row[token] > value))
    return number


def told(logits, bits, tokens, totals, ranks, places, keys):
    """Of every row the logarithm of the sum of exponentials, the rank of its token, and where the largest are, in falling order.

    logits: float32 [n, V], and as bits int32. tokens: int64 [n]. totals: float64 [n]. ranks: int64 [n], 0 where a row holds what
    is no number or no finite one, and nothing else is told. places: int64 [n, count]. keys: int32 [count], scratch.
    """
    for at in range(len(logits)):
        row = logits[at]
        best = likeliest(row.ctypes.data, len(row))
        ranks[at] = 0
        if best < 0 or not abs(row[best]) < _f(np.inf):
            continue
        everything = sum_of(row.ctypes.data, len(row), _f(1), _f(-np.inf), _f(-np.inf), row[best])
        totals[at] = np.float64(row[best]) + math.log(everything)
        ranks[at] = _larger(row, row[tokens[at]]) + 1
        if len(keys):
            largest_of(bits[at], keys, places[at])
