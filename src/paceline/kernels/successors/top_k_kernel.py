"""Numba definition for `successors`: a table of the k likeliest next tokens per token."""

from __future__ import annotations

from math import exp

import numpy as np

from paceline.kernels.native.best import ANYTHING, largest_above
from paceline.kernels.native.memory import carray, floats, pointer


def record_top_k(logits, row_bytes, size, rows, number, tokens, shares, count, scratch):
    """Write the `count` likeliest tokens of every row of logits, and their probabilities, to rows of a table.

    If a table row occurs repeatedly, the last logits count; those with NaN or an infinity among their largest are skipped. All
    but row_bytes, size, number and count are addresses. logits: float32 [number, size], `row_bytes` from one row to the next;
    size is at least count. rows: int64 [number], rows of the table. tokens: int32 [R, count], the likeliest first. shares:
    float32 [R, count], probabilities normalised over these `count` tokens. scratch: int64 [3, count].
    """
    where = carray(pointer(rows), number, np.int64)
    places = carray(pointer(scratch), count, np.int64)
    weights = carray(pointer(scratch + 8 * count), count, np.float64)
    keys = carray(pointer(scratch + 16 * count), count, np.int32)
    for at in range(number):
        line = logits + at * row_bytes
        row = floats(line)
        if largest_above(line, size, count, ANYTHING, keys, places) < count:
            continue
        first = np.float64(row[places[0]])
        if not (np.isfinite(first) and np.isfinite(row[places[count - 1]])):
            continue
        total = 0.0
        for place in range(count):
            weights[place] = exp(np.float64(row[places[place]]) - first)
            total += weights[place]
        noted_tokens = carray(pointer(tokens + 4 * count * where[at]), count, np.int32)
        noted_shares = carray(pointer(shares + 4 * count * where[at]), count, np.float32)
        for place in range(count):
            noted_tokens[place] = places[place]
            noted_shares[place] = weights[place] / total
