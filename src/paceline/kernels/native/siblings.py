"""Siblings: the children of one node of a draft, the distribution they were drawn from, and their confidences.

They are those that `growth.Draft` would choose among the tokens that the request's cuts keep: the likeliest, with or without the
position's noise, or draws. There are none if the row contains NaN, nor if two scores with the position's noise are too close to
be certain of the target's choice. Draws are never withheld for closeness: it depends on the drawn tokens, and verifiers that keep
the distribution rely on unfiltered draws.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.best import largest_kept, largest_noised
from paceline.kernels.native.choosing import SAME_NOISE, drawn, key_of, likeliest
from paceline.kernels.native.cutting import least_kept
from paceline.kernels.native.judging import LEAST_POWER, recorded, share, share_noised
from paceline.kernels.native.layout import COUPLED, LIKELIEST, PAIRED, REPLACED
from paceline.kernels.native.memory import floats, helper

_f = np.float32


@helper
def _paired(line, count, temperature, best, least, key, held, values, tokens, seeds):
    """Write SpecHub's second child, coupled to the first, which was drawn: the likeliest token, or, if that was drawn, one drawn
    among the others. Returns the number of children."""
    first = tokens[0]
    tokens[1] = best
    if first != best:
        return 2
    # not a literal: for it Numba would compile the function and its callees once more
    two = np.int64(2)
    size = largest_noised(line, count, temperature, key, two, least, np.float64(0.0), held, values, tokens, seeds)
    tokens[1] = tokens[0] if tokens[0] != best else tokens[1]
    tokens[0] = first
    return size


@helper
def _chosen(line, count, temperature, choice, wanted, best, least, noise, streams, length, held, values, tokens, seeds):
    """Write the children, in the order of their choice; returns their number."""
    gap = SAME_NOISE if choice == COUPLED else 0.0
    if choice == LIKELIEST:
        tokens[0] = best
        return 1 if wanted == 1 else largest_kept(line, count, temperature, wanted, least, held, tokens)
    if choice in (COUPLED, REPLACED) and wanted > 1:
        key = noise if choice == COUPLED else key_of(streams[0], length)
        return largest_noised(line, count, temperature, key, wanted, least, gap, held, values, tokens, seeds)
    for at in range(1 if choice == PAIRED else wanted):
        key = noise if choice == COUPLED else key_of(streams[at], length)
        tokens[at] = drawn(line, count, temperature, key, best, least, _f(-np.inf), gap)
        if tokens[at] < 0:
            return 0
    if choice == PAIRED and wanted > 1:
        return _paired(line, count, temperature, best, least, key_of(streams[1], length), held, values, tokens, seeds)
    return wanted


@helper
def siblings(line, count, owner, level, choice, wanted, streams, held, values, tokens, seeds, shares, probs, size):
    """Write the children of a node and their confidences; returns their number.

    line: address of its row of `count` logits, shaped. owner: the OWNER it belongs to. level: the node's. streams: int64 [K],
    seeds of its own draws. held: address of int32 [MOST_KEPT], values: float64 [K], seeds: int64 [K], scratch. tokens: int64 [K].
    shares: float32 [K]. probs: address of float32 [size], for the distribution they are drawn from; or 0.
    """
    temperature, length = _f(owner.temperature), owner.length
    if temperature == 0:
        temperature, choice, probs = _f(1), LIKELIEST, 0
    best, least, noise = likeliest(line, count), _f(-np.inf), key_of(owner.seed, length + level)
    if best < 0:
        return 0
    logits = floats(line)
    top = logits[best] / temperature
    if not abs(top) < _f(np.inf):
        return 0
    if owner.top_k != 0 or owner.top_p < 1 or owner.log_min_p > -np.inf:
        least = least_kept(line, count, temperature, owner.top_k, owner.top_p, _f(owner.log_min_p), top, held, 0)
    if probs != 0:
        # tokens are drawn from exactly the recorded distribution, and the likeliest is its likeliest
        least = max(least, top + LEAST_POWER)
        recorded(line, count, temperature, least, top, probs, size)
        if choice == PAIRED:
            best = likeliest(probs, count)
    found = _chosen(
        line, count, temperature, choice, wanted, best, least, noise, streams, length, held, values, tokens, seeds
    )  # fmt: skip
    if found == 0:
        return 0
    if probs != 0:
        for at in range(found):
            shares[at] = floats(probs)[tokens[at]]
        return found
    first = tokens[0]
    if choice == COUPLED:
        whole = share_noised(line, count, temperature, least, noise, first)
    else:
        whole = share(line, count, temperature, least, first)
    shares[0] = whole
    for at in range(1, found):
        below = values[0] - values[at] if choice == COUPLED else np.float64((logits[first] - logits[tokens[at]]) / temperature)
        shares[at] = _f(whole * np.exp(-below))
    return found
