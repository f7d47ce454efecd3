"""Largest: the few largest of every row of logits, in one walk over it, and how they are noted (`successors`)."""

from __future__ import annotations

from math import exp

import numpy as np

from paceline.kernels.native.arithmetic import placed
from paceline.kernels.native.best import put_in_order
from paceline.kernels.native.memory import carray, floats, helper, pointer

_BLOCK = 64
"""Numbers of which only the largest is compared with what is held; hardly any block of a large vocabulary has one to take."""


@helper
def largest_of(row, keys, places):
    """The largest of a row in falling order, of equal ones the first first. row: bits of float32; keys: as many as are wanted."""
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


def noted(logits, row_bytes, size, rows, number, tokens, shares, count, scratch):
    """Note the `count` largest of every row of logits behind the token whose row it is; of equal tokens the later row counts, one
    with no number among its largest never. All but the numbers are addresses.

    logits: float32 [number, size], `row_bytes` from one row to the next; size at least count. rows: int64 [number], where in the
    tables. tokens: int32 [R, count], the likeliest first. shares: float32 [R, count], of the likelihood of all of them that each
    has. scratch: int64 [3, count].
    """
    where = carray(pointer(rows), number, np.int64)
    places = carray(pointer(scratch), count, np.int64)
    weights = carray(pointer(scratch + 8 * count), count, np.float64)
    keys = carray(pointer(scratch + 16 * count), count, np.int32)
    for at in range(number):
        line = logits + at * row_bytes
        row = floats(line)
        largest_of(carray(pointer(line), size, np.int32), keys, places)
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
