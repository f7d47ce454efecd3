"""Cutting: the least score that top-k, top-p and min-p leave of a row of logits.

A score is a logit over the temperature. A token is within top-p if those with larger scores hold less than that: mostly a few of
the largest are all, which are held in order; where they are more than can be held, the edge is found by halves.
"""

from __future__ import annotations

import numba
import numpy as np

from paceline.kernels.native.arithmetic import in_order
from paceline.kernels.native.choosing import kept_by_top_k, sum_of
from paceline.kernels.native.layout import MOST_KEPT
from paceline.kernels.native.memory import HELPER, bits_of, carray, float_of, helper, pointer

_f = np.float32
_FEW = 24
"""Mostly so many tokens are top-p; more are found if they are not."""

# no liberties: shares are compared with those that others sum
_plain = numba.njit(**HELPER, fastmath={"contract"})


@_plain
def _within_top_p(row, count, temperature, top_k, top_p, least, top, held):
    """The least score within top-p. least: of those that top-k leaves. held: address of int32 [MOST_KEPT], scratch."""
    total = sum_of(row, count, temperature, least, _f(-np.inf), top)
    most = min(count, top_k if 0 < top_k < count else MOST_KEPT)
    keys, number, begin, share, weight = carray(pointer(held), MOST_KEPT, np.int32), min(most, _FEW), 0, 0.0, 0.0
    while True:
        kept_by_top_k(row, count, number, held)
        for place in range(begin, number):
            score = float_of(in_order(keys[place])) / temperature
            weight = np.exp(np.float64(score) - np.float64(top)) / total
            share += weight
            if share > top_p:
                return score
        # none of those that follow is likelier than the last one
        if number == most or share + (most - number) * weight < top_p:
            break
        begin, number = number, most
    if most == MOST_KEPT < count:
        return _edge(row, count, temperature, top_p, least, top, total, keys[number - 1])
    # sums are rounded: all that there are may hold less than top-p
    return least


@_plain
def _edge(row, count, temperature, top_p, least, top, total, inside):
    """The same for many tokens. total: what all of them hold, times e^top. inside: a logit within top-p, in order."""
    inside, outside = np.int64(inside), np.int64(in_order(bits_of(_f(-np.inf))))
    while inside - outside > 1:
        middle = (inside + outside) >> 1
        score = float_of(in_order(np.int32(middle))) / temperature
        if sum_of(row, count, temperature, least, score, top) / total < top_p:
            inside = middle
        else:
            outside = middle
    return float_of(in_order(np.int32(inside))) / temperature


@helper
def least_kept(row, count, temperature, top_k, top_p, least_to_top, top, held):
    """The least score that is left of a row of `count` logits; -inf where nothing is cut.

    top_k: 0, or at least `count`: all; MOST_KEPT at most otherwise. top_p: float64; 1: all. least_to_top: float32, log min-p;
    -inf: all. top: the largest score, a number. held: address of int32 [MOST_KEPT], scratch.
    """
    least = _f(-np.inf)
    if 0 < top_k < count:
        least = kept_by_top_k(row, count, top_k, held) / temperature
    if top_p < 1:
        least = max(least, _within_top_p(row, count, temperature, top_k, top_p, least, top, held))
    return max(least, top + least_to_top)
