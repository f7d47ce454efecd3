"""Choosing: the token of a row of logits, exactly the one that `sampling.choose` picks without penalties, biases and bans.

If greedy, it is the largest logit. At a temperature it is the token with the largest score (logit / temperature) plus the noise
of a key, among the tokens that top-k, top-p and min-p keep: with the same float32 divisions, the same hash and the same noise.
Where the last bits of another library's sums or logarithms could change the result, nothing is chosen, and the caller uses
`sampling.choose`.

Rows are not sorted. A token is within top-p if those with larger scores have less probability than top-p. A token drawn outside
of it is drawn again among those with larger scores, seldom more than twice.

Source: Gumbel-max sampling; the noise is that of `paceline.noise`, which names its sources.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.kernels.native.arithmetic import exponential, in_order
from paceline.kernels.native.layout import MOST_KEPT
from paceline.kernels.native.memory import bits_of, carray, float_of, floats, helper, inlined, pointer, sums

NO_NUMBER, IN_DOUBT = -1, -2
"""In place of a token: the row contains NaN or its largest score is infinite; two tokens, or a share and top-p, are too close."""
_f = np.float32
_INFINITY = np.int32(0x7F800000)
_LEAST_KEY, _LARGEST_KEY = np.int32(-(2**31)), np.int32(2**31 - 1)
_STRETCH = 256
"""Logits per stretch: the largest logit is found stretch by stretch, then looked up by its value from its stretch on."""
BLOCK = 64
"""Tokens per block; a block is scanned token by token only if one of them may win."""
SUMMED_TOGETHER = 1024
"""Shares summed in float32 before they are added in float64."""
_SLACK, _SLACK_OF_VALUE = 1e-3, 1e-6
"""Slack of bounds, absolute and relative to the score, which covers their rounding in float32."""
SAME_NOISE = 1e-5
"""Noised scores further apart than this have the same order with any library's logarithm: noise is a float32 below 23, and its
last bit may differ."""
SAME_SHARE = 4e-6
"""Shares further from top-p than this are on the same side of it however they are summed: sums of hundreds of thousands of
float32 exponentials, of differences rounded to float32."""


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
    """`noise.key`. seed: its 64 bits as int64."""
    return np.int64(_mixed_long(_mixed_long(np.uint64(seed)) + np.uint64(position)))


@inlined
def _mixed(x):
    x = np.int32(np.int32(x ^ ((x >> np.int32(16)) & np.int32(0xFFFF))) * np.int32(0x7FEB352D))
    x = np.int32(np.int32(x ^ ((x >> np.int32(15)) & np.int32(0x1FFFF))) * np.int32(-2073254261))
    return np.int32(x ^ ((x >> np.int32(16)) & np.int32(0xFFFF)))


@inlined
def hashed(key, token):
    """`noise.hashed` of one token."""
    low, high = np.int32(key & 0xFFFFFFFF), np.int32(key >> 32)
    return _mixed(np.int32(_mixed(np.int32(np.int32(token) ^ low)) + high))


@inlined
def most_noise(word):
    """An upper bound of a hash's noise: -log(1 - u), with log2 approximated by the bits of a float32.

    Using the mantissa m for log2(1 + m) makes it at most 0.06 too large. For u below 1/2 it is the bound for u = 1/2.
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
    """The value that a token's float32 bound must exceed for its noised score to be possibly larger than `top`."""
    return _f(top - _SLACK - _SLACK_OF_VALUE * abs(top))


@helper
def likeliest(row, count):
    """The first token with the largest logit; NO_NUMBER if a logit is NaN. row: address of float32."""
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
    # both zeros are equal, but their bits differ
    for token in range(0 if value == 0 else begin, count):
        if logits[token] == value:
            return token
    return NO_NUMBER


@helper
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
    """The token with the largest noised score among those whose score is at least `least` and larger than `above`; IN_DOUBT if
    another one comes closer than `gap`.

    best: `likeliest`, and one of those tokens. gap: SAME_NOISE for a choice that other code must reproduce, else 0. Logarithms
    are computed only for tokens that may win.
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
    """The `top_k`-th largest logit, up to the sign of zero. held: address of int32 [MOST_KEPT], scratch."""
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


@sums
def _part(row, begin, end, temperature, least, above, top):
    logits, total = floats(row), _f(0)
    for token in range(begin, end):
        score = logits[token] / temperature
        weight = exponential(score - top)
        total += weight if (score >= least) & (score > above) else _f(0)
    return total


@helper
def sum_of(row, count, temperature, least, above, top):
    """The sum of e^(score - top) over scores at least `least` and larger than `above`; relative error a few millionths."""
    total = 0.0
    for begin in range(0, count, SUMMED_TOGETHER):
        total += np.float64(_part(row, begin, min(begin + SUMMED_TOGETHER, count), temperature, least, above, top))
    return total


@helper
def chosen(row, count, temperature, key, top_k, top_p, least_to_top, held):
    """The token of a row of `count` logits; NO_NUMBER or IN_DOUBT if it is not certain.

    temperature: float32; 0: greedy. top_k: 0, or at least `count`: all; otherwise at most MOST_KEPT. top_p: float64; 1: all.
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
