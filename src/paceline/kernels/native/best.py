"""Best: the few largest of a row of logits in order, with noise or without; exactly those that `ranking` finds.

If two noised scores are too close together, or the row contains NaN, none is found.

Source: Gumbel-top-k, Kool et al. (arXiv:1903.06059); the noise is that of `paceline.noise`, which names its sources.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native import choosing
from paceline.kernels.native.arithmetic import placed
from paceline.kernels.native.layout import MOST_KEPT
from paceline.kernels.native.memory import bits_of, carray, floats, helper, pointer

_f = np.float32
_NOTHING, ANYTHING = np.int32(-0x7F800001), np.int32(-(2**31))
"""Minus infinity, mapped by `in_order`; and what is below it."""


@helper
def put_in_order(values, tokens, size, value, token):
    """Insert a value and its token into lists in falling order, after equal values. size: their length afterwards; if the lists
    had that length already, the last entry is dropped."""
    at = size - 1
    while at > 0 and values[at - 1] < value:
        values[at], tokens[at] = values[at - 1], tokens[at - 1]
        at -= 1
    values[at], tokens[at] = value, token


@helper
def largest_above(row, count, wanted, above, keys, tokens):
    """Write up to `wanted` tokens with the largest logits, in a tie the lower token first; returns their number. row: address of
    float32. above: what `in_order` makes of a logit; only larger ones are taken. keys: int32 [wanted], scratch. tokens: int64
    [wanted]."""
    logits, size = floats(row), 0
    for begin in range(0, count, choosing.BLOCK):
        end = min(begin + choosing.BLOCK, count)
        if size == wanted and choosing.largest_of(row, begin, end) <= keys[wanted - 1]:
            continue
        for token in range(begin, end):
            place = placed(bits_of(logits[token]))
            if place <= above or (size == wanted and place <= keys[wanted - 1]):
                continue
            size = min(size + 1, wanted)
            put_in_order(keys, tokens, size, place, token)
    return size


@helper
def largest(row, count, wanted, held, tokens):
    """As `largest_above` minus infinity; none if the row contains NaN. held: address of int32 [MOST_KEPT], scratch."""
    if choosing.likeliest(row, count) < 0:
        return 0
    return largest_above(row, count, wanted, _NOTHING, carray(pointer(held), MOST_KEPT, np.int32), tokens)


@helper
def _among(tokens, size, token):
    for at in range(size):  # noqa: SIM110  (compiled: no generators)
        if tokens[at] == token:
            return True
    return False


@helper
def largest_kept(row, count, temperature, wanted, least, held, tokens):
    """As `largest`, among tokens whose scores, logits / temperature, are at least `least`."""
    logits, size = floats(row), largest(row, count, wanted, held, tokens)
    while size > 0 and logits[tokens[size - 1]] / temperature < least:
        size -= 1
    return size


@helper
def largest_noised(row, count, temperature, key, wanted, least, gap, held, values, tokens, seeds):
    """As `largest_kept`, by scores with the noise of a key. gap: least lead of each over the next, as in `choosing.drawn`.
    values: float64 [wanted], the tokens' noised scores. seeds: int64 [wanted], scratch.
    """
    logits, size = floats(row), largest_kept(row, count, temperature, wanted, least, held, seeds)
    if size == 0 or not abs(logits[seeds[0]] / temperature) < _f(np.inf):
        return 0
    for at in range(size):
        score, word = logits[seeds[at]] / temperature, choosing.hashed(key, seeds[at])
        put_in_order(values, tokens, at + 1, choosing.noised(score, word), seeds[at])
    second, reach = -np.inf, choosing.reach_of(values[size - 1])
    # if fewer than wanted were found, there are no others
    for begin in range(0, count if size == wanted else 0, choosing.BLOCK):
        end = min(begin + choosing.BLOCK, count)
        if not choosing.one_may_win(row, begin, end, temperature, key, least, _f(-np.inf), reach):
            continue
        for token in range(begin, end):
            score, word = logits[token] / temperature, choosing.hashed(key, token)
            if not score + choosing.most_noise(word) > reach or not score > -np.inf or score < least:
                continue
            if _among(seeds, size, token):
                continue
            value = choosing.noised(score, word)
            second = max(second, min(value, values[size - 1]))
            if value > values[size - 1]:
                put_in_order(values, tokens, size, value, token)
                reach = choosing.reach_of(values[size - 1])
    for at in range(size):
        if values[at] - (values[at + 1] if at + 1 < size else second) < gap:
            return 0
    return size
