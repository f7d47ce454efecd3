"""Numba definition for `distributions`: the sampling distribution of one row of logits, after temperature, top-k, top-p,
min-p."""

from __future__ import annotations

import numba
import numpy as np

from paceline.kernels.native.choosing import likeliest
from paceline.kernels.native.cutting import UNSURE, least_kept
from paceline.kernels.native.memory import HELPER, carray, double_of, floats, long_of, plain, pointer, sums
from paceline.kernels.native.shaping import copied, shaped

TEMPERATURE, TOP_P, LOG_MIN_P, TOP_K, FOUND, NUMBERS = range(6)
"""Indices of `numbers`, float64: parameters of the distribution; and FOUND, which is set to 1 where it was computed."""
_f = np.float32
_SHIFTER = 6755399441055744.0
"""1.5 * 2^52: adding it to a smaller number rounds that to an integer, which the lowest bits of the sum then hold."""
_LEAST_POWER = -700.0
"""Tokens less likely than the likeliest by a factor below e to this power get probability 0; half a float64's range."""


# no reassociation, which could cancel adding and subtracting the shifter
@numba.njit(**HELPER, inline="always", fastmath={"contract"})
def _exponential(x):
    """exp(x) of a float64 from `_LEAST_POWER` to 0, to about one unit in the last place."""
    shifted = x * 1.4426950408889634 + _SHIFTER
    whole = shifted - _SHIFTER
    # ln 2 in two parts: the first times any integer here is exact
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


@plain
def _exponentials(row, count, temperature, top, probs):
    """Write exp(logit / temperature - top) per token. row: address of float32 [count]. probs: float64 [count]."""
    logits = floats(row)
    for token in range(count):
        power = np.float64(logits[token] / temperature) - np.float64(top)
        weight = _exponential(max(power, _LEAST_POWER))
        probs[token] = weight if power >= _LEAST_POWER else 0.0


@plain
def _apply_cut(row, count, temperature, least, probs):
    """Set tokens whose logit / temperature is below `least` to 0."""
    logits = floats(row)
    for token in range(count):
        probs[token] = probs[token] if logits[token] / temperature >= least else 0.0


@sums
def _total(probs):
    """The sum of float64 [count]."""
    total = 0.0
    for token in range(len(probs)):
        total += probs[token]
    return total


@plain
def _normalize(probs, total):
    """Divide by a total in place."""
    for token in range(len(probs)):
        probs[token] /= total


def distribution(logits, count, shape, path, length, copy, numbers, held, probs):
    """Write the distribution of a row, float64 [count], to `probs`. All but `count` and `length` are addresses, or 0.

    logits: float32 [count]. shape: biases and penalties, as `choices.shapes` writes them, 0 for none. path: int64 [length],
    drafted tokens between the committed ones and the one this row chooses. copy: float32 [count], scratch where there is a shape.
    numbers: float64 [NUMBERS]; top-k is at most MOST_KEPT, or at least `count`, or 0 for none. held: int32 [MOST_KEPT], scratch
    for cuts.

    FOUND stays 0, and `probs` is undefined, where the row holds NaN, its largest logit is not finite, or a cut is too close to
    the rounding of a sum.
    """
    parameters = carray(pointer(numbers), NUMBERS, np.float64)
    temperature, row = _f(parameters[TEMPERATURE]), logits
    parameters[FOUND] = 0
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
    _exponentials(row, count, temperature, top, found)
    least = least_kept(
        row, count, temperature, int(parameters[TOP_K]), parameters[TOP_P], _f(parameters[LOG_MIN_P]), top, held, probs
    )
    if least == UNSURE:
        return
    _apply_cut(row, count, temperature, least, found)
    _normalize(found, _total(found))
    parameters[FOUND] = 1
