"""Arithmetic of single rows: norms, softmax, activations, rotation. Each works on one row alone: no other row affects its bits.

The loops are left to LLVM's vectoriser, which may reorder a sum by lanes, in the same way for all rows of equal length.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types

from paceline.kernels.native.memory import HELPER, float_of, floats, inlined, intrinsic, put
from paceline.kernels.native.vectors import F32, external

_loops = numba.njit(**HELPER, fastmath={"reassoc", "contract", "nsz", "arcp"})
_f = np.float32
_MINUS_ZERO = np.int32(-(2**31))
"""The bits of minus zero."""


@intrinsic
def floored(context, x):
    """The floor of a float32, as float32; `math.floor` gives an int64, of which a register holds half as many."""

    def generate(context, builder, signature, arguments):
        return builder.call(external(builder, "llvm.floor.f32", F32, [F32]), arguments)

    return types.float32(types.float32), generate


@inlined
def exponential(x):
    """exp of a float32, to about one unit in the last place from -87 to 88; e^-87 below, e^88 above."""
    bounded = min(max(x, _f(-87.0)), _f(88.0))
    whole = floored(bounded * _f(1.44269504) + _f(0.5))
    rest = bounded - whole * _f(0.693145752)
    rest = rest - whole * _f(1.42860677e-6)
    power = _f(1 / 5040)
    power = power * rest + _f(1 / 720)
    power = power * rest + _f(1 / 120)
    power = power * rest + _f(1 / 24)
    power = power * rest + _f(1 / 6)
    power = power * rest + _f(0.5)
    power = power * rest + _f(1.0)
    power = power * rest + _f(1.0)
    bits = np.int32(np.int32(whole) + np.int32(127)) << np.int32(23)
    return power * float_of(np.int32(bits))


@_loops
def rms_norm(row, count, weight, epsilon, out):
    """out = row / sqrt(mean(row^2) + epsilon) * weight. Zhang and Sennrich (arXiv:1910.07467). All addresses of float32."""
    x, w, y = floats(row), floats(weight), floats(out)
    total = _f(0)
    for k in range(count):
        total += x[k] * x[k]
    scale = _f(1) / np.sqrt(total / _f(count) + epsilon)
    for k in range(count):
        put(y, k, x[k] * scale * w[k])


@_loops
def rms_norm_in_parts(row, parts, count, stride, weight, epsilon):
    """As `rms_norm`, in place, over `parts` parts of `count` numbers, `stride` floats apart; the weights are contiguous."""
    total = _f(0)
    for part in range(parts):
        x = floats(row + 4 * part * stride)
        for k in range(count):
            total += x[k] * x[k]
    scale = _f(1) / np.sqrt(total / _f(parts * count) + epsilon)
    for part in range(parts):
        x, w = floats(row + 4 * part * stride), floats(weight + 4 * part * count)
        for k in range(count):
            put(x, k, x[k] * scale * w[k])


@_loops
def layer_norm(row, count, weight, bias, epsilon, out):
    """out = (row - mean) / sqrt(variance + epsilon) * weight + bias. Ba et al. (arXiv:1607.06450)."""
    x, w, b, y = floats(row), floats(weight), floats(bias), floats(out)
    total = _f(0)
    for k in range(count):
        total += x[k]
    mean = total / _f(count)
    spread = _f(0)
    for k in range(count):
        spread += (x[k] - mean) * (x[k] - mean)
    scale = _f(1) / np.sqrt(spread / _f(count) + epsilon)
    for k in range(count):
        put(y, k, (x[k] - mean) * scale * w[k] + b[k])


@intrinsic
def larger(context, a, b):
    """The larger of two float32 that are not NaN, in a form that is vectorised; Python's `max`, which handles NaN, is not."""

    def generate(context, builder, signature, arguments):
        return builder.call(external(builder, "llvm.maxnum.f32", F32, [F32, F32]), arguments, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), generate


@inlined
def in_order(bits):
    """Map a float32's bits to an int32 with the same order, and back: the bits of negative numbers are inverted. NaN becomes the
    largest or, with the sign bit, the smallest."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@inlined
def placed(bits):
    """As `in_order`, but minus zero equals zero."""
    return in_order(bits) if bits != _MINUS_ZERO else np.int32(0)


@_loops
def largest(row, count):
    x = floats(row)
    top = x[0]
    for t in range(count):
        top = larger(top, x[t])
    return top


@_loops
def soft_capped(row, count, cap):
    """row = cap * tanh(row / cap), in place. Gemma 2 (arXiv:2408.00118), section 2."""
    x = floats(row)
    for t in range(count):
        put(x, t, cap * (_f(1) - _f(2) / (exponential(_f(2) * x[t] / cap) + _f(1))))


@_loops
def soft_max(row, count, factor):
    """row = exp(factor * (row - max)), in place; returns the sum, by which the caller must divide. factor: above 0."""
    x = floats(row)
    top = largest(row, count)
    total = _f(0)
    for t in range(count):
        value = exponential((x[t] - top) * factor)
        put(x, t, value)
        total += value
    return total


@_loops
def scaled(row, count, factor):
    x = floats(row)
    for t in range(count):
        put(x, t, x[t] * factor)


@_loops
def filled(row, begin, end, value):
    """row[begin:end] = value."""
    x = floats(row)
    for t in range(begin, end):
        put(x, t, value)


@_loops
def added(row, count, other):
    x, y = floats(row), floats(other)
    for k in range(count):
        put(x, k, x[k] + y[k])


@_loops
def weighed(row, count, other, weight):
    """row += weight * other."""
    x, y = floats(row), floats(other)
    for k in range(count):
        put(x, k, x[k] + weight * y[k])


@_loops
def silu_gated(gate, up, count, out):
    """out = gate * sigmoid(gate) * up. Shazeer (arXiv:2002.05202)."""
    g, u, y = floats(gate), floats(up), floats(out)
    for k in range(count):
        put(y, k, g[k] / (_f(1) + exponential(-g[k])) * u[k])


@_loops
def gelu_gated(gate, up, count, out):
    """out = GELU(gate) * up in its tanh form. Hendrycks and Gimpel (arXiv:1606.08415)."""
    g, u, y = floats(gate), floats(up), floats(out)
    for k in range(count):
        inner = _f(0.7978845608) * (g[k] + _f(0.044715) * g[k] * g[k] * g[k])
        put(y, k, g[k] / (_f(1) + exponential(_f(-2) * inner)) * u[k])


@_loops
def rotated(row, half, cosine, sine):
    """Rotate the first 2 * half numbers by position: pairs (k, k + half). Su et al. (arXiv:2104.09864)."""
    x, c, s = floats(row), floats(cosine), floats(sine)
    for k in range(half):
        a, b = x[k], x[k + half]
        put(x, k, a * c[k] - b * s[k])
        put(x, k + half, b * c[k] + a * s[k])
