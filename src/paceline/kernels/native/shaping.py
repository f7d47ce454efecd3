"""Shaping: bias, bans and penalties on a row of logits: the operations of `sampling.shaped` in the same order, with equal bits.

Grammars are not applied here.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.layout import BIASES, COUNTED, FREQUENCY, PRESENCE, REPETITION, SEEN, SHAPE_HEAD, STOPS, UNTIL
from paceline.kernels.native.memory import carray, floats, helper, pointer, put

_f = np.float32


@helper
def copied(row, count, target):
    """target = row. Addresses of float32."""
    source, copy = floats(row), floats(target)
    for token in range(count):
        put(copy, token, source[token])


@helper
def _times(numbers, begin, end, wanted):
    """How often `wanted` occurs in numbers[begin:end]."""
    found = 0
    for at in range(begin, end):
        found += numbers[at] == wanted
    return found


@helper
def _repeated(logits, token, penalty):
    value = logits[token]
    put(logits, token, value / penalty if value > 0 else value * penalty)


@helper
def _lowered(logits, token, presence, frequency, times):
    put(logits, token, logits[token] - (presence + frequency * _f(times)))


@helper
def shaped(row, count, shape, path, length):
    """Shape a row in place. row: address of `count` float32. shape: address of the array of `choices.shapes`. path: address of
    the `length` drafted tokens, int64, between the committed ones and the one that this row chooses."""
    logits, ancestors = floats(row), carray(pointer(path), length, np.int64)
    head = carray(pointer(shape), SHAPE_HEAD, np.float64)
    biases, stops, seen, counted = int(head[BIASES]), int(head[STOPS]), int(head[SEEN]), int(head[COUNTED])
    told = carray(pointer(shape), SHAPE_HEAD + 2 * biases + stops + seen + 2 * counted, np.float64)
    at = SHAPE_HEAD
    for place in range(at, at + biases):
        token = int(told[place])
        # a draft model may have fewer tokens
        if token < count:
            put(logits, token, logits[token] + _f(told[place + biases]))
    at += 2 * biases
    for place in range(at, at + stops):
        if length < head[UNTIL] and told[place] < count:
            put(logits, int(told[place]), _f(-np.inf))
    at += stops
    penalty, presence, frequency = _f(head[REPETITION]), _f(head[PRESENCE]), _f(head[FREQUENCY])
    if penalty != 1:
        for place in range(at, at + seen):
            if told[place] < count:
                _repeated(logits, int(told[place]), penalty)
        for place in range(length):
            token = ancestors[place]
            if token < count and _times(ancestors, 0, place, token) == 0 and _times(told, at, at + seen, token) == 0:
                _repeated(logits, token, penalty)
    at += seen
    if presence != 0 or frequency != 0:
        for place in range(at, at + counted):
            if told[place] < count:
                times = told[place + counted] + _times(ancestors, 0, length, int(told[place]))
                _lowered(logits, int(told[place]), presence, frequency, times)
        for place in range(length):
            token = ancestors[place]
            if token < count and _times(ancestors, 0, place, token) == 0 and _times(told, at, at + counted, token) == 0:
                _lowered(logits, token, presence, frequency, _times(ancestors, 0, length, token))
