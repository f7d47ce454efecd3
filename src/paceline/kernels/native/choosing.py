"""Choosing: the token of a row of logits, the very one that `sampling.choose` picks without penalties and the like.

Greedy it is the largest logit. At a temperature it is the largest score, a logit over the temperature, plus the noise of a key,
of the tokens that top-k, top-p and min-p leave: the same divisions in float32, the same hash, the same noise. Where sums or
logarithms of another library could decide otherwise by their last bits, nothing is chosen, and whoever asks goes the long way.

No order is made of a row. A token is within top-p if those with larger scores hold less than that. What is drawn and is not
within it is drawn anew among those with larger scores, seldom more than twice.

Source: Gumbel-max sampling; the noise is that of `paceline.noise`, which names its sources.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from paceline.kernels.native.arithmetic import exponential, in_order
from paceline.kernels.native.layout import MOST_KEPT
from paceline.kernels.native.memory import HELPER, bits_of, carray, float_of, floats, helper, pointer

NO_NUMBER, IN_DOUBT = -1, -2
"""In place of a token: the row holds what is no number; two tokens, or both sides of top-p, are too close together."""
_f = np.float32
_INFINITY = np.int32(0x7F800000)
_LEAST_KEY, _LARGEST_KEY = np.int32(-(2**31)), np.int32(2**31 - 1)
_STRETCH = 256
"""Logits of which the largest is found before the next; and in which it is looked for by its value."""
BLOCK = 64
"""Tokens that are looked through one by one only if one of them may win."""
SUMMED_TOGETHER = 1024
"""Shares summed in float32 before they are added in float64."""
_SLACK, _SLACK_OF_VALUE = 1e-3, 1e-6
"""How much more is taken for possible than is: what bounds are rounded by in float32."""
SAME_NOISE = 1e-5
"""Noised scores further apart than this are in the same order whoever took the logarithms: the last bit of a float32 below 23."""
SAME_SHARE = 4e-6
"""Shares further from top-p than this are on the same side of it whoever summed them: exponentials in float32 of differences that
are rounded to it, hundreds of thousands of them."""

_plain = numba.njit(**HELPER)
_inline = numba.njit(**HELPER, inline="always")
# no "arcp": scores are divisions, to the last bit
_sums = numba.njit(**HELPER, fastmath={"reassoc", "contract", "nsz"})


@helper
def _shifted(x, bits):
    return x ^ (x >> np.uint64(bits))


@helper
def _mixed_long(x):
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = _shifted(x, 30) * np.uint64(0xBF58476D1CE4E5B9)
    x = _shifted(x, 27) * np.uint64(0x94D049BB133111EB)
    return _shifted(x, 31)


@helper
def key_of(seed, position):
    """`noise.key`. seed: its 64 bits, whatever their sign."""
    return np.int64(_mixed_long(_mixed_long(np.uint64(seed)) + np.uint64(position)))


@_inline
def _mixed(x):
    x = np.int32(np.int32(x ^ ((x >> np.int32(16)) & np.int32(0xFFFF))) * np.int32(0x7FEB352D))
    x = np.int32(np.int32(x ^ ((x >> np.int32(15)) & np.int32(0x1FFFF))) * np.int32(-2073254261))
    return np.int32(x ^ ((x >> np.int32(16)) & np.int32(0xFFFF)))


@_inline
def hashed(key, token):
    """`noise.hashed` of one token."""
    low, high = np.int32(key & 0xFFFFFFFF), np.int32(key >> 32)
    return _mixed(np.int32(_mixed(np.int32(np.int32(token) ^ low)) + high))


@_inline
def most_noise(word):
    """A bound of the noise of a hash: -log(1 - u), with the logarithm of base 2 read off the bits of a float32.

    The mantissa, m for log2(1 + m), makes it 0.06 too large at most. Below u = 1/2 it is that of u = 1/2.
    """
    rest = np.int32(np.int32(0x7FFFFFFF) - max(word, np.int32(0)))
    bits = bits_of((_f(rest) + _f(0.5)) * _f(2.0**-32))
    return _f(0.69314718) * (_f(127) - _f(bits) * _f(2.0**-23))


@helper
def noised(score, word):
    """A score with the noise of a hash, rounded as `noise.gumbel` rounds it."""
    uniform = (np.float64(word) + (2147483648.0 + 0.5)) * 2.0**-32
    return np.float64(score) + np.float64(_f(-math.log(-math.log(uniform))))


@helper
def reach_of(top):
    """What a bound in float32 must be above, for a noised score to be able to be larger than this one."""
    return _f(top - _SLACK - _SLACK_OF_VALUE * abs(top))


@helper
def likeliest(row, count):
    """The first of the largest logits; NO_NUMBER where one is none. row: address of float32."""
    logits, top, least, begin = floats(row), _LEAST_KEY, _LARGEST_KEY, 0
    for low in range(0, count, _STRETCH):
        here, below = _LEAST_KEY, _LARGEST_KEY
        for token in range(low, min(low + _STRETCH, count)):
            place = in_order(bits_of(logits[token]))
            here, below = max(here, place), min(below, place)
        least = min(least, below)
        if here > top:
            top, begin = here, low
    if top > _INFINITY or least < in_order(np.int32(_INFINITY | _LEAST_KEY)):
        return NO_NUMBER
    value = float_of(in_order(top))
    # the two zeros are equal, and one is the larger by its bits
    for token in range(0 if value == 0 else begin, count):
        if logits[token] == value:
            return token
    return NO_NUMBER


@_plain
def one_may_win(row, begin, end, temperature, key, least, above, reach):
    """Whether the noised score of a token may be larger than `reach`."""
    logits, found = floats(row), np.int32(0)
    for token in range(begin, end):
        score = logits[token] / temperature
        may = (score >= least) & (score > above) & (score + most_noise(hashed(key, np.int32(token))) > reach)
        found = np.int32(found | np.int32(may))
    return found != 0


@helper
def drawn(row, count, temperature, key, best, least, above, gap):
    """The token with the largest noised score, of those whose score is `least` or more and larger than `above`; IN_DOUBT where
    another comes closer than `gap`.

    best: `likeliest`, and one of those tokens. gap: SAME_NOISE for a choice that others must make alike, 0 for any other.
    Logarithms are taken only of what may win.
    """
    logits = floats(row)
    token, second = best, -np.inf
    top = noised(logits[best] / temperature, hashed(key, best))
    reach = reach_of(top)
    for begin in range(0, count, BLOCK):
        end = min(begin + BLOCK, count)
        if not one_may_win(row, begin, end, temperature, key, least, above, reach):
            continue
        for other in range(begin, end):
            score, word = logits[other] / temperature, hashed(key, other)
            if other == best or score < least or score <= above or score + most_noise(word) <= reach:
                continue
            value = noised(score, word)
            if value > top:
                token, top, second = other, value, top
                reach = reach_of(top)
            else:
                second = max(second, value)
    return token if top - second >= gap else IN_DOUBT


@helper
def largest_of(row, begin, end):
    logits, top = floats(row), _LEAST_KEY
    for token in range(begin, end):
        top = max(top, in_order(bits_of(logits[token])))
    return top


@helper
def kept_by_top_k(row, count, top_k, held):
    """The `top_k`-th largest logit, the zeros being the same. held: address of int32 [MOST_KEPT], scratch."""
    logits, keys, size = floats(row), carray(pointer(held), MOST_KEPT, np.int32), 0
    for begin in range(0, count, BLOCK):
        end = min(begin + BLOCK, count)
        if size == top_k and largest_of(row, begin, end) <= keys[top_k - 1]:
            continue
        for token in range(begin, end):
            place = in_order(bits_of(logits[token]))
            if size == top_k and place <= keys[top_k - 1]:
                continue
            size = min(size + 1, top_k)
            at = size - 1
            while at > 0 and keys[at - 1] < place:
                keys[at] = keys[at - 1]
                at -= 1
            keys[at] = place
    return float_of(in_order(keys[top_k - 1]))


@_sums
def _part(row, begin, end, temperature, least, above, top):
    logits, total = floats(row), _f(0)
    for token in range(begin, end):
        score = logits[token] / temperature
        weight = exponential(score - top)
        total += weight if (score >= least) & (score > above) else _f(0)
    return total


@helper
def sum_of(row, count, temperature, least, above, top):
    """The sum of e^(score - top), of scores that are `least` or more and larger than `above`; to a few millionths of itself."""
    total = 0.0
    for begin in range(0, count, SUMMED_TOGETHER):
        total += np.float64(_part(row, begin, min(begin + SUMMED_TOGETHER, count), temperature, least, above, top))
    return total


@helper
def chosen(row, count, temperature, key, top_k, top_p, least_to_top, held):
    """The token of a row of `count` logits; NO_NUMBER or IN_DOUBT where there is none that is sure.

    temperature: float32; 0: greedy. top_k: 0, or at least `count`: all; MOST_KEPT at most otherwise. top_p: float64; 1: all.
    least_to_top: float32, log min-p; -inf: all. held: address of int32 [MOST_KEPT], scratch.
    """
    best = likeliest(row, count)
    if best < 0 or temperature == 0:
        return best
    logits = floats(row)
    top, least, above, total = logits[best] / temperature, _f(-np.inf), _f(-np.inf), 0.0
    if not abs(top) < _f(np.inf):
        return NO_NUMBER
    if 0 < top_k < count:
        least = kept_by_top_k(row, count, top_k, held) / temperature
    if top_p < 1:
        total = sum_of(row, count, temperature, least, above, top)
    while True:
        token = drawn(row, count, temperature, key, best, max(least, top + least_to_top), above, SAME_NOISE)
        if token < 0 or top_p >= 1:
            return token
        score = logits[token] / temperature
        if score == top:
            return token
        share = sum_of(row, count, temperature, least, score, top) / total
        if abs(share - top_p) < SAME_SHARE:
            return IN_DOUBT
        if share < top_p:
            return token
        above = score
