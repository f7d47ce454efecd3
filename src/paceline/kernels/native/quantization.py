"""Quantization of activations: a group of inputs as whole numbers with one scale, in vector instructions.

Source: integer-only products of symmetric whole numbers, Jacob et al. (arXiv:1712.05877); a scale per group after ZeroQuant
(arXiv:2206.01861).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from paceline.kernels.native.formats import GROUP
from paceline.kernels.native.memory import intrinsic
from paceline.kernels.native.vectors import F32, I32, constant, external, load, splat, store

from numba import types  # isort: skip  (after `vectors`, which tells it how wide registers are)

_NUMBERS, _WHOLE = ir.VectorType(F32, GROUP), ir.VectorType(I32, GROUP)
_SMALLEST = 2.0**-126
"""A scale below it has no finite inverse; what it would scale counts as zero."""


@intrinsic(prefer_literal=True)
def quantized_group(context, bits, source, scale, sum_, words, stride):
    """Quantise GROUP float32 at `source` to 8 or 16 bits: the largest becomes 127 or 32767. All are addresses, but `bits`, known
    when compiling, and `stride`, the bytes between words.

    Written: the float32 scale; as int32 the sum of the whole numbers; the words, four of 8 bits or two of 16 each.
    """
    width = bits.literal_value

    def generate(context, builder, signature, arguments):
        _quantize(builder, width, *arguments[1:])
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 5), generate


def _quantize(builder: Any, bits: int, source: Any, scale: Any, sum_: Any, words: Any, stride: Any) -> None:
    kinds = f"v{GROUP}f32"
    numbers = load(builder, source, _NUMBERS, 4)
    # as whole numbers sizes are in the same order, and what is no number is the largest: then the scale is none either
    sizes = builder.and_(builder.bitcast(numbers, _WHOLE), ir.Constant(_WHOLE, [0x7FFFFFFF] * GROUP))
    largest = builder.call(external(builder, f"llvm.vector.reduce.umax.v{GROUP}i32", I32, [_WHOLE]), [sizes])
    size = builder.fdiv(builder.bitcast(largest, F32), F32(2 ** (bits - 1) - 1))
    some = builder.fcmp_ordered(">=", size, F32(_SMALLEST))
    inverse = builder.select(some, builder.fdiv(F32(1.0), size), F32(0.0))
    halves = ir.Constant(_NUMBERS, [0.5] * GROUP)
    nearest = builder.fadd(builder.fmul(numbers, splat(builder, inverse, GROUP)), halves)
    nearest = builder.call(external(builder, f"llvm.floor.{kinds}", _NUMBERS, [_NUMBERS]), [nearest])
    levels = builder.fptosi(nearest, _WHOLE)
    total = builder.call(external(builder, f"llvm.vector.reduce.add.v{GROUP}i32", I32, [_WHOLE]), [levels])
    store(builder, size, scale, 4)
    store(builder, total, sum_, 4)
    count = GROUP * bits // 32
    taken = builder.bitcast(builder.trunc(levels, ir.VectorType(ir.IntType(bits), GROUP)), ir.VectorType(I32, count))
    for word in range(count):
        place = builder.add(words, builder.mul(stride, constant(word)))
        store(builder, builder.extract_element(taken, I32(word)), place, 4)
