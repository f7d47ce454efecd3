"""Quantization of activations: a group of inputs as bytes with one scale, in vector instructions.

Source: integer-only products of symmetric whole numbers, Jacob et al. (arXiv:1712.05877); a scale per group after ZeroQuant
(arXiv:2206.01861).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from paceline.kernels.native.formats import GROUP
from paceline.kernels.native.memory import intrinsic
from paceline.kernels.native.vectors import F32, I8, I32, constant, external, load, splat, store

from numba import types  # isort: skip  (after `vectors`, which tells it how wide registers are)

_TOGETHER = 4
"""Bytes that are multiplied at once."""
_LEVELS = 127
_NUMBERS, _WHOLE = ir.VectorType(F32, GROUP), ir.VectorType(I32, GROUP)


@intrinsic
def quantized_group(context, source, scale, excess, words, stride):
    """Quantise GROUP float32 at `source`: the largest becomes 127. All are addresses, but `stride`, the bytes between words.

    Written: the float32 scale; as int32, 128 times the sum of the bytes; GROUP / 4 words of four bytes.
    """

    def generate(context, builder, signature, arguments):
        _quantize(builder, *arguments)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _quantize(builder: Any, source: Any, scale: Any, excess: Any, words: Any, stride: Any) -> None:
    kinds = f"v{GROUP}f32"
    numbers = load(builder, source, _NUMBERS, 4)
    sizes = builder.call(external(builder, f"llvm.fabs.{kinds}", _NUMBERS, [_NUMBERS]), [numbers])
    largest = builder.call(
        external(builder, f"llvm.vector.reduce.fmax.{kinds}", F32, [_NUMBERS]), [sizes], fastmath=("nnan", "nsz")
    )
    size = builder.fdiv(largest, F32(_LEVELS))
    some = builder.fcmp_ordered(">", size, F32(0.0))
    inverse = builder.select(some, builder.fdiv(F32(1.0), size), F32(0.0))
    halves = ir.Constant(_NUMBERS, [0.5] * GROUP)
    nearest = builder.fadd(builder.fmul(numbers, splat(builder, inverse, GROUP)), halves)
    nearest = builder.call(external(builder, f"llvm.floor.{kinds}", _NUMBERS, [_NUMBERS]), [nearest])
    levels = builder.fptosi(nearest, _WHOLE)
    total = builder.call(external(builder, f"llvm.vector.reduce.add.v{GROUP}i32", I32, [_WHOLE]), [levels])
    store(builder, size, scale, 4)
    store(builder, builder.mul(total, I32(128)), excess, 4)
    count = GROUP // _TOGETHER
    taken = builder.bitcast(builder.trunc(levels, ir.VectorType(I8, GROUP)), ir.VectorType(I32, count))
    for word in range(count):
        place = builder.add(words, builder.mul(stride, constant(word)))
        store(builder, builder.extract_element(taken, I32(word)), place, 4)
