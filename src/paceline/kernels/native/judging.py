"""Judging: a drafted token's confidence, the distribution that it is drawn from, and whether a draft continues after it."""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.arithmetic import exponential, filled, scaled
from paceline.kernels.native.choosing import SUMMED_TOGETHER, hashed, sum_of
from paceline.kernels.native.memory import bits_of, carray, float_of, floats, helper, inlined, pointer, put, sums
from paceline.stopping import CLASSES, DEEPEST, LIKELIEST as LIKELIEST_TO_COME_TRUE, shifted

_f = np.float32
_shifted = helper(shifted)
"""`stopping.shifted`, for compiled code."""

LEAST_POWER = _f(-69)
"""Tokens less likely than the likeliest by a factor below e to this power are not drawn: so every token that can be drawn has a
nonzero probability in the recorded float32 distribution, even after division by the sum over a large vocabulary."""


@inlined
def _logarithm(x):
    """log of a positive float32, to 2e-6."""
    bits = bits_of(x)
    mantissa = float_of(np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)))
    s = (mantissa - _f(1)) / (mantissa + _f(1))
    square = s * s
    series = _f(1) + square * (_f(1 / 3) + square * (_f(1 / 5) + square * (_f(1 / 7) + square * _f(1 / 9))))
    return _f(np.int32(bits >> np.int32(23)) - np.int32(127)) * _f(0.69314718) + _f(2) * s * series


@inlined
def _weight_of_noise(word):
    """exp of a hash's noise, -1 / log(uniform), from 31 of its bits; precise at both ends of the range."""
    high = np.int32(np.int32(word >> np.int32(1)) + np.int32(1 << 30))
    rest = (_f(np.int32(np.int32(0x7FFFFFFF) - high)) + _f(0.5)) * _f(2.0**-31)
    near_one = rest * (_f(1) + rest * (_f(1 / 2) + rest * (_f(1 / 3) + rest * _f(1 / 4))))
    return _f(1) / (near_one if rest < _f(0.03) else -_logarithm((_f(high) + _f(0.5)) * _f(2.0**-31)))


@helper
def share(row, count, temperature, least, token):
    """A token's probability in the softmax of logits / temperature over the scores that are at least `least`."""
    return _f(1.0 / sum_of(row, count, temperature, least, _f(-np.inf), floats(row)[token] / temperature))


@sums
def share_noised(row, count, temperature, least, key, token):
    """As `share`, with the noise of a key added to the scores."""
    logits = floats(row)
    own, total = logits[token] / temperature, _f(0)
    for other in range(count):
        score = logits[other] / temperature
        weight = exponential(score - own) * _weight_of_noise(hashed(key, other))
        total += weight if (score >= least) & (other != token) else _f(0)
    return _f(1) / (_f(1) + total / _weight_of_noise(hashed(key, token)))


@sums
def _weighed(row, begin, end, temperature, least, top, probs):
    logits, found, total = floats(row), floats(probs), _f(0)
    for token in range(begin, end):
        score = logits[token] / temperature
        weight = exponential(score - top)
        weight = weight if score >= least else _f(0)
        put(found, token, weight)
        total += weight
    return total


@helper
def recorded(row, count, temperature, least, top, probs, size):
    """Write the distribution that a token is drawn from: the softmax of the scores that are at least `least`. top: the largest
    score, finite; `least` is at least top + LEAST_POWER. probs: address of float32 [size], zero from `count` on."""
    total = 0.0
    for begin in range(0, count, SUMMED_TOGETHER):
        total += np.float64(_weighed(row, begin, min(begin + SUMMED_TOGETHER, count), temperature, least, top, probs))
    scaled(probs, count, _f(1.0 / total))
    filled(probs, count, size, _f(0))


@helper
def ends_text(token, ends, count):
    """Whether a token ends a text, so that no token after it can be accepted. ends: address of int64 [count]."""
    those = carray(pointer(ends), count, np.int64)
    for place in range(count):  # noqa: SIM110  (compiled: no generators)
        if those[place] == token:
            return True
    return False


@helper
def reached(chances, odds, before, level, confidence):
    """The probability that a path extended by one token is accepted (`Stopping.reach`). level: of the token, from 0. chances:
    address of float32 [DEEPEST, CLASSES]."""
    judged = min(confidence * _f(CLASSES), _f(CLASSES - 1)) if confidence < _f(1) else _f(CLASSES - 1)
    at = min(level, DEEPEST - 1) * CLASSES + int(max(judged, _f(0)))
    return _f(before * min(_shifted(floats(chances)[at], odds), LIKELIEST_TO_COME_TRUE))
