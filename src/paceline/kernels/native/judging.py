"""Judging: how likely a drafted token is held to be, and whether a draft goes on behind it."""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.arithmetic import exponential
from paceline.kernels.native.choosing import hashed
from paceline.kernels.native.memory import HELPER, bits_of, float_of, floats, helper
from paceline.stopping import CLASSES, DEEPEST, LIKELIEST as LIKELIEST_TO_COME_TRUE, shifted

import numba  # isort: skip  (after `vectors`)

_f = np.float32
_shifted = helper(shifted)
"""The same, for compiled code."""

_inline = numba.njit(**HELPER, inline="always")
_loops = numba.njit(**HELPER, fastmath={"reassoc", "contract", "nsz", "arcp"})


@_inline
def _logarithm(x):
    """log of a positive float32, to 2e-6."""
    bits = bits_of(x)
    mantissa = float_of(np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)))
    s = (mantissa - _f(1)) / (mantissa + _f(1))
    square = s * s
    series = _f(1) + square * (_f(1 / 3) + square * (_f(1 / 5) + square * (_f(1 / 7) + square * _f(1 / 9))))
    return _f(np.int32(bits >> np.int32(23)) - np.int32(127)) * _f(0.69314718) + _f(2) * s * series


@_inline
def _weight_of_noise(word):
    """exp of the noise of a hash, -1 / log(uniform), from 31 of its bits; both ends of the range keep their precision."""
    high = np.int32(np.int32(word >> np.int32(1)) + np.int32(1 << 30))
    rest = (_f(np.int32(np.int32(0x7FFFFFFF) - high)) + _f(0.5)) * _f(2.0**-31)
    near_one = rest * (_f(1) + rest * (_f(1 / 2) + rest * (_f(1 / 3) + rest * _f(1 / 4))))
    return _f(1) / (near_one if rest < _f(0.03) else -_logarithm((_f(high) + _f(0.5)) * _f(2.0**-31)))


@_loops
def share(row, count, temperature, token):
    """The share of a token in the softmax of logits / temperature."""
    logits = floats(row)
    own, scale, total = logits[token], _f(1) / temperature, _f(0)
    for other in range(count):
        total += exponential((logits[other] - own) * scale)
    return _f(1) / total


@_loops
def share_noised(row, count, temperature, key, token):
    """The share of a token in the softmax of logits / temperature + noise."""
    logits = floats(row)
    own, scale, total = logits[token], _f(1) / temperature, _f(0)
    for other in range(count):
        weight = exponential((logits[other] - own) * scale) * _weight_of_noise(hashed(key, other))
        total += weight if other != token else _f(0)
    return _f(1) / (_f(1) + total / _weight_of_noise(hashed(key, token)))


@helper
def ends_text(token, ends, bounds, owner):
    """Whether a token ends the text of a sequence: nothing can come true behind it."""
    for place in range(bounds[owner], bounds[owner + 1]):  # noqa: SIM110  (compiled: no generators)
        if ends[place] == token:
            return True
    return False


@helper
def reached(chances, odds, before, level, confidence):
    """How likely a path comes true behind one more token, of a level from 0 on (`Stopping.reach`). chances: address of float32
    [DEEPEST, CLASSES]."""
    judged = min(confidence * _f(CLASSES), _f(CLASSES - 1)) if confidence < _f(1) else _f(CLASSES - 1)
    at = min(level, DEEPEST - 1) * CLASSES + int(max(judged, _f(0)))
    return _f(before * min(_shifted(floats(chances)[at], odds), LIKELIEST_TO_COME_TRUE))
