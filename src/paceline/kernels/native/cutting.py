"""Cutting: the lowest score of a row of logits that top-k, top-p and min-p keep.

A score is logit / temperature. A token is within top-p if the tokens with larger scores have less probability than top-p: mostly
these are a few of the largest, which are kept in order; if they are more than MOST_KEPT, the edge is found by bisection.

Drafts use sums in float32. Where the result must agree with that of other code, which sums in float64, the caller passes the
weights of all tokens in float64, and a case that their last bits could decide is reported as UNSURE.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.arithmetic import in_order
from paceline.kernels.native.choosing import kept_by_top_k, sum_of
from paceline.kernels.native.layout import MOST_KEPT
from paceline.kernels.native.memory import bits_of, carray, float_of, floats, helper, plain, pointer, sums

_f = np.float32
UNSURE = _f(np.inf)
"""In place of a score: a share is too close to top-p."""
_SAME_SHARE = 1e-9
"""Shares further from top-p than this are on the same side of it in whatever order they are summed in float64."""
_FEW = 24
"""Number of tokens that is tried first; mostly top-p needs no more."""


@sums
def _weight_of(row, count, temperature, least, above, weights):
    logits, those, total = floats(row), carray(pointer(weights), count, np.float64), 0.0
    for token in range(count):
        score = logits[token] / temperature
        total += those[token] if (score >= least) & (score > above) else 0.0
    return total


@helper
def _held_by(row, count, temperature, least, above, top, weights):
    """`choosing.sum_of`, but a sum of the given weights if there are any."""
    if weights == 0:
        return sum_of(row, count, temperature, least, above, top)
    return _weight_of(row, count, temperature, least, above, weights)


@plain
def _within_top_p(row, count, temperature, top_k, top_p, least, top, held, weights):
    """The lowest score within top-p, or UNSURE; arguments as in `least_kept`. least: the lowest score that top-k keeps."""
    total = _held_by(row, count, temperature, least, _f(-np.inf), top, weights)
    doubt = _SAME_SHARE if weights != 0 else 0.0
    most = min(count, top_k if 0 < top_k < count else MOST_KEPT)
    keys, number, begin, share, weight = carray(pointer(held), MOST_KEPT, np.int32), min(most, _FEW), 0, 0.0, 0.0
    last = top
    while True:
        kept_by_top_k(row, count, number, held)
        for place in range(begin, number):
            score = float_of(in_order(keys[place])) / temperature
            # tokens of one score stay or go together
            if share > top_p - doubt and score != last:
                return UNSURE
            weight = np.exp(np.float64(score) - np.float64(top)) / total
            share += weight
            if share >= top_p + doubt:
                return score
            last = score
        # no later token is likelier than the last one
        if number == most or share + (most - number) * weight < top_p:
            break
        begin, number = number, most
    if most == MOST_KEPT < count:
        return _edge(row, count, temperature, top_p, least, top, total, keys[number - 1], weights)
    # because sums are rounded, all tokens together may have less than top-p
    return least


@plain
def _edge(row, count, temperature, top_p, least, top, total, inside, weights):
    """As `_within_top_p`, for many tokens, by bisection. total: sum of all weights. inside: a logit within top-p, as the int32 of
    `in_order`."""
    doubt = _SAME_SHARE if weights != 0 else 0.0
    inside, outside = np.int64(inside), np.int64(in_order(bits_of(_f(-np.inf))))
    while inside - outside > 1:
        middle = (inside + outside) >> 1
        score = float_of(in_order(np.int32(middle))) / temperature
        share = _held_by(row, count, temperature, least, score, top, weights) / total
        if abs(share - top_p) < doubt:
            return UNSURE
        if share < top_p:
            inside = middle
        else:
            outside = middle
    return float_of(in_order(np.int32(inside))) / temperature


@helper
def least_kept(row, count, temperature, top_k, top_p, least_to_top, top, held, weights):
    """The lowest score that the cuts keep of a row of `count` logits; -inf if nothing is cut; UNSURE if there are weights and the
    result is uncertain.

    top_k: 0, or at least `count`: all; otherwise at most MOST_KEPT. top_p: float64; 1: all. least_to_top: float32, log min-p;
    -inf: all. top: the largest score, finite. held: address of int32 [MOST_KEPT], scratch. weights: address of float64 [count],
    e^(score - top) of all tokens; or 0 to use sums in float32.
    """
    least = _f(-np.inf)
    if 0 < top_k < count:
        least = kept_by_top_k(row, count, top_k, held) / temperature
    if top_p < 1:
        least = max(least, _within_top_p(row, count, temperature, top_k, top_p, least, top, held, weights))
    return max(least, top + least_to_top)
