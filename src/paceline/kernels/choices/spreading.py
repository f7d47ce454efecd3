"""Spreading: of a row of logits the whole distribution that it stands for (`distributions`)."""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.arithmetic import in_order
from paceline.kernels.native.choosing import SAME_SHARE, kept_by_top_k, likeliest, sum_of
from paceline.kernels.native.layout import MOST_KEPT
from paceline.kernels.native.memory import HELPER, carray, double_of, float_of, floats, long_of, pointer
from paceline.kernels.native.shaping import copied, shaped

import numba  # isort: skip  (after `vectors`)

TEMPERATURE, TOP_P, LOG_MIN_P, TOP_K, TOLD, NUMBERS = range(6)
"""What a row's distribution depends on, and whether it was told, float64."""
_f = np.float32
_FEW = 24
"""Mostly so many tokens are top-p; more are found if they are not."""
_UNSURE = np.inf
_SHIFTER = 6755399441055744.0
"""1.5 * 2^52: a number of smaller size that is added to it is rounded to a whole one, which its lowest bits then hold."""
_LEAST_POWER = -700.0
"""What is less likely than the likeliest by more than e to this counts as nothing; half a float64's range."""

# no liberties: what is added to the shifter is subtracted again
_plain = numba.njit(**HELPER, fastmath={"contract"})
_sums = numba.njit(**HELPER, fastmath={"reassoc", "contract", "nsz"})


@numba.njit(**HELPER, inline="always", fastmath={"contract"})
def _exponential(x):
    """exp of a float64 from `_LEAST_POWER` to 0, to about one unit in the last place."""
    shifted = x * 1.4426950408889634 + _SHIFTER
    whole = shifted - _SHIFTER
    # ln 2 in two parts, of which the first times any whole number here is exact
    rest = x - whole * 0.693147180369123816490
    rest = rest - whole * 1.90821492927058770002e-10
    power = 1 / 6227020800
    power = power * rest + 1 / 479001600
    power = power * rest + 1 / 39916800
    power = power * rest + 1 / 3628800
    power = power * rest + 1 / 362880
    power = power * rest + 1 / 40320
    power = power * rest + 1 / 5040
    power = power * rest + 1 / 720
    power = power * rest + 1 / 120
    power = power * rest + 1 / 24
    power = power * rest + 1 / 6
    power = power * rest + 0.5
    power = power * rest + 1.0
    power = power * rest + 1.0
    return double_of(long_of(power) + (long_of(shifted) << 52))


@_plain
def _weighed(row, count, temperature, least, top, probs):
    logits = floats(row)
    for token in range(count):
        score = logits[token] / temperature
        power = np.float64(score) - np.float64(top)
        weight = _exponential(max(power, _LEAST_POWER))
        probs[token] = weight if (score >= least) & (power >= _LEAST_POWER) else 0.0


@_sums
def _total(probs):
    total = 0.0
    for token in range(len(probs)):
        total += probs[token]
    return total


@_plain
def _divided(probs, total):
    for token in range(len(probs)):
        probs[token] /= total


@_plain
def _least_within(row, count, temperature, top_k, top_p, least, top, held):
    """The least score within top-p; `_UNSURE` where more tokens are within it than can be held, or one is at its edge.

    least: of those that top-k leaves. held: address of int32 [MOST_KEPT], scratch.
    """
    total = sum_of(row, count, temperature, least, _f(-np.inf), top)
    most = min(count, top_k if 0 < top_k < count else MOST_KEPT)
    keys, number, begin, share, weight = carray(pointer(held), MOST_KEPT, np.int32), min(most, _FEW), 0, 0.0, 0.0
    while True:
        kept_by_top_k(row, count, number, held)
        for place in range(begin, number):
            score = float_of(in_order(keys[place])) / temperature
            weight = np.exp(np.float64(score) - np.float64(top)) / total
            share += weight
            if abs(share - top_p) < SAME_SHARE:
                return _f(_UNSURE)
            if share > top_p:
                return score
        # none of those that follow is likelier than the last one
        if number == most or share + (most - number) * weight < top_p:
            return _f(_UNSURE)
        begin, number = number, most


def spread(logits, count, shape, path, length, copy, numbers, held, probs):
    """The distribution of a row under temperature, cuts and what shapes it. All but the counts are addresses, or 0.

    logits: float32 [count]. shape: what `choices.shapes` writes. path: int64 [length], the tokens between the committed ones and
    what the row chooses. copy: float32 [count], scratch for a row that is shaped. numbers: float64 [NUMBERS], of which the last
    says whether the distribution is told; top-k is MOST_KEPT at most, or at least `count`, or 0. held: int32 [MOST_KEPT], scratch
    for cuts. probs: float64 [count].
    """
    told = carray(pointer(numbers), NUMBERS, np.float64)
    temperature, top_k, row, least = _f(told[TEMPERATURE]), int(told[TOP_K]), logits, _f(-np.inf)
    told[TOLD] = 0
    if shape != 0:
        copied(row, count, copy)
        row = copy
        shaped(row, count, shape, path, length)
    best = likeliest(row, count)
    if best < 0:
        return
    top = floats(row)[best] / temperature
    if not abs(top) < _f(np.inf):
        return
    if 0 < top_k < count:
        least = kept_by_top_k(row, count, top_k, held) / temperature
    if told[TOP_P] < 1:
        least = max(least, _least_within(row, count, temperature, top_k, told[TOP_P], least, top, held))
        if least == _f(_UNSURE):
            return
    found = carray(pointer(probs), count, np.float64)
    _weighed(row, count, temperature, max(least, top + _f(told[LOG_MIN_P])), top, found)
    _divided(found, _total(found))
    told[TOLD] = 1
