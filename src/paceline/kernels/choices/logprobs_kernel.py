"""Numba definition for `logprobs`: per row of logits, the log-normalizer, the rank of one token, and the likeliest tokens."""

from __future__ import annotations

import math

import numpy as np

from paceline.kernels.native.best import ANYTHING, largest_above
from paceline.kernels.native.choosing import likeliest, sum_of
from paceline.kernels.native.memory import helper

_f = np.float32


@helper
def _count_greater(row, value):
    """How many logits of a row are greater than a value."""
    number = np.int32(0)
    for token in range(len(row)):
        number = np.int32(number + np.int32(row[token] > value))
    return number


def token_logprobs(logits, tokens, totals, ranks, places, keys):
    """Per row, write the log-sum-exp of its logits, the rank of its token, and its `count` likeliest tokens, the likeliest first.

    logits: float32 [n, V]. tokens: int64 [n]. Written are totals: float64 [n], natural logarithms; ranks: int64 [n], 1 for the
    likeliest, 0 where a row holds NaN or its largest logit is not finite, and then nothing else is written; places: int64 [n,
    count], token ids. keys: int32 [count], scratch.
    """
    for at in range(len(logits)):
        row = logits[at]
        best = likeliest(row.ctypes.data, len(row))
        ranks[at] = 0
        if best < 0 or not abs(row[best]) < _f(np.inf):
            continue
        everything = sum_of(row.ctypes.data, len(row), _f(1), _f(-np.inf), _f(-np.inf), row[best])
        totals[at] = np.float64(row[best]) + math.log(everything)
        ranks[at] = _count_greater(row, row[tokens[at]]) + 1
        if len(keys):
            largest_above(row.ctypes.data, len(row), len(keys), ANYTHING, keys, places[at])
