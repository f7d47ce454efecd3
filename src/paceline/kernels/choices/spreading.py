"""Spreading: of a row of logits the whole distribution that it stands for (`distributions`)."""

from __future__ import annotations

import numba
import numpy as np

from paceline.kernels.native.choosing import likeliest
from paceline.kernels.native.cutting import UNSURE, least_kept
from paceline.kernels.native.memory import HELPER, carray, double_of, floats, long_of, pointer
from paceline.kernels.native.shaping import copied, shaped

TEMPERATURE, TOP_P, LOG_MIN_P, TOP_K, TOLD, NUMBERS = range(6)
"""What a row's distribution depends on, and whether it was told, float64."""
_f = np.float32
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
def _weighed(row, count, temperature, top, probs):
    logits = floats(row)
    for token in range(count):
        power = np.float64(logits[token] / temperature) - np.float64(top)
        weight = _exponential(max(power, _LEAST_POWER))
        probs[token] = weight if power >= _LEAST_POWER else 0.0


@_plain
def _cut(row, count, temperature, least, probs):
    logits = floats(row)
    for token in range(count):
        probs[token] = probs[token] if logits[token] / temperature >= least else 0.0


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


def spread(logits, count, shape, path, length, copy, numbers, held, probs):
    """The distribution of a row under temperature, cuts and what shapes it. All but the counts are addresses, or 0.

    logits: float32 [count]. shape: what `choices.shapes` writes. path: int64 [length], the tokens between the committed ones and
    what the row chooses. copy: float32 [count], scratch for a row that is shaped. numbers: float64 [NUMBERS], of which the last
    says whether the distribution is told; top-k is MOST_KEPT at most, or at least `count`, or 0. held: int32 [MOST_KEPT], scratch
    for cuts. probs: float64 [count].
    """
    told = carray(pointer(numbers), NUMBERS, np.float64)
    temperature, row = _f(told[TEMPERATURE]), logits
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
    found = carray(pointer(probs), count, np.float64)
    _weighed(row, count, temperature, top, found)
    least = least_kept(row, count, temperature, int(told[TOP_K]), told[TOP_P], _f(told[LOG_MIN_P]), top, held, probs)
    if least == UNSURE:
        return
    _cut(row, count, temperature, least, found)
    _divided(found, _total(found))
    told[TOLD] = 1
