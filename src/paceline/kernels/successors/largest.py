"""Largest: the few largest of every row of logits, in one walk over it, and how they are noted (`successors`)."""

from __future__ import annotations

from math import exp

import numpy as np

from paceline.kernels.native.arithmetic import in_order
from paceline.kernels.native.best import put_in_order
from paceline.kernels.native.memory import helper

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
            top = max(top, in_order(row[at]))
        if held == count and top <= keys[count - 1]:
            continue
        for at in range(begin, end):
            key = in_order(row[at])
            if held == count and key <= keys[count - 1]:
                continue
            held = min(held + 1, count)
            put_in_order(keys, places, held, key, at)


def largest(logits, bits, values, places, keys):
    """Of every row the largest in falling order, of equal ones the first first, and where they are.

    logits: float32 [n, V], and as bits int32. values, places: float32 and int64 [n, count], with V at least as much. keys: int32
    [count], scratch.
    """
    count = len(keys)
    for row in range(len(logits)):
        largest_of(bits[row], keys, places[row])
        for place in range(count):
            values[row, place] = logits[row, places[row, place]]


def note(values, places, rows, tokens, shares, weights):
    """Note what follows a token in each of `rows`; of equal rows the later one counts, one with no number among its largest
    never.

    values, places: of `largest`. rows: int64 [n]. tokens: int32 [R, k], k successors, the likeliest first. shares: float32
    [R, k], of the likelihood of all k that each of them has. weights: float64 [k], scratch.
    """
    count = tokens.shape[1]
    for at in range(len(rows)):
        first = np.float64(values[at, 0])
        if not (np.isfinite(first) and np.isfinite(values[at, count - 1])):
            continue
        total = 0.0
        for place in range(count):
            weights[place] = exp(np.float64(values[at, place]) - first)
            total += weights[place]
        for place in range(count):
            tokens[rows[at], place] = places[at, place]
            shares[rows[at], place] = weights[place] / total
