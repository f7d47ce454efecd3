"""Numba definitions for `successors`: the k largest of a row of logits in one pass over it, and a table of them per token."""

from __future__ import annotations

from math import exp

import numpy as np

from paceline.kernels.native.arithmetic import placed
from paceline.kernels.native.best import put_in_order
from paceline.kernels.native.memory import carray, floats, helper, pointer

_BLOCK = 64
"""Logits per block: the block's largest is compared first with the k found so far, since few blocks of a large vocabulary contain
one of the k largest."""


@helper
def top_k(row, keys, places):
    """Write the indices of the k largest numbers of a row to `places`, in falling order, in a tie the lower index first.

    row: int32, the bits of float32 numbers. keys: int32 [k], scratch. places: int64 [k].
    """
    held, count = 0, len(keys)
    for begin in range(0, len(row), _BLOCK):
        end = min(begin + _BLOCK, len(row))
        top = np.int32(-(2**31))
        for at in range(begin, end):
            top = max(top, placed(row[at]))
        if held == count and top <= keys[count - 1]:
            continue
        for at in range(begin, end):
            key = placed(row[at])
            if held == count and key <= keys[count - 1]:
                continue
            held = min(held + 1, count)
            put_in_order(keys, places, held, key, at)


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
        top_k(carray(pointer(line), size, np.int32), keys, places)
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
