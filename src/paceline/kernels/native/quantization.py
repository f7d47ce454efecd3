"""Quantization of activations, in vector instructions: a group of inputs, or a row, as integers with one scale, or a row as
bfloat16, one or two per number.

Source: integer-only products of symmetric whole numbers, Jacob et al. (arXiv:1712.05877); a scale per row (token) or group after
ZeroQuant (arXiv:2206.01861); sums of bfloat16 in place of a float32, Henry, Tang and Heinecke (arXiv:1904.06376).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from paceline.kernels.native.formats import BLOCK, GROUP, LARGEST
from paceline.kernels.native.memory import intrinsic
from paceline.kernels.native.vectors import F32, I8, I16, I32, constant, counted, external, load, splat, store

_NUMBERS, _WHOLE = ir.VectorType(F32, GROUP), ir.VectorType(I32, GROUP)
_SMALLEST = 2.0**-126
"""Smaller scales have no finite inverse; their numbers become zero."""


def _group_of(bits: int) -> Any:
    """An intrinsic that quantises GROUP float32 at `source` to so many bits. All its arguments are addresses, except `stride`,
    the bytes between words.

    It writes the float32 scale; as int32 the sum of the integers; the words, of as many integers as fit into 32 bits.
    """

    def quantized(context, source, scale, sum_, words, stride):
        def generate(context, builder, signature, arguments):
            source, scale, sum_, words, stride = arguments
            numbers = load(builder, source, _NUMBERS, 4)
            size, inverse = _scale(builder, _largest(builder, numbers), 2 ** (bits - 1) - 1)
            levels = _levels(builder, numbers, inverse)
            store(builder, size, scale, 4)
            store(builder, _sum(builder, levels), sum_, 4)
            count = GROUP * bits // 32
            taken = builder.bitcast(builder.trunc(levels, ir.VectorType(ir.IntType(bits), GROUP)), ir.VectorType(I32, count))
            for word in range(count):
                place = builder.add(words, builder.mul(stride, constant(word)))
                store(builder, builder.extract_element(taken, I32(word)), place, 4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return intrinsic(quantized)


group_of_pairs = _group_of(16)
group_of_bytes = _group_of(8)


def _row_of(bits: int, write: Any) -> Any:
    """An intrinsic that quantises a row of float32 at `source`, a multiple of BLOCK of them, to so many bits.

    It writes the float32 scale; for 8 bits, as int32, the sum of the integers; and the integers by `write`, GROUP at a time, with
    `stride` bytes between blocks: (builder, int32 [GROUP], index of the group in its block, address of the block, stride).
    """

    def quantized(context, source, inputs, scale, sum_, target, stride):
        def generate(context, builder, signature, arguments):
            source, inputs, scale, sum_, target, stride = arguments
            with counted(builder, builder.udiv(inputs, constant(GROUP)), [I32(0)]) as loop:
                numbers = load(builder, builder.add(source, builder.mul(loop.index, constant(4 * GROUP))), _NUMBERS, 4)
                largest = _largest(builder, numbers)
                more = builder.icmp_unsigned(">", largest, loop.carried[0])
                loop.next = [builder.select(more, largest, loop.carried[0])]
            size, inverse = _scale(builder, loop.carried[0], LARGEST[bits])
            with counted(builder, builder.udiv(inputs, constant(BLOCK)), [I32(0)]) as loop:
                total = loop.carried[0]
                for part in range(BLOCK // GROUP):
                    place = builder.add(builder.mul(loop.index, constant(4 * BLOCK)), constant(4 * GROUP * part))
                    levels = _levels(builder, load(builder, builder.add(source, place), _NUMBERS, 4), inverse)
                    if bits == 8:
                        total = builder.add(total, _sum(builder, levels))
                    write(builder, levels, part, builder.add(target, builder.mul(loop.index, stride)), stride)
                loop.next = [total]
            store(builder, size, scale, 4)
            if bits == 8:
                store(builder, loop.carried[0], sum_, 4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return intrinsic(quantized)


def _write_bytes(builder: Any, levels: Any, part: int, block: Any, _stride: Any) -> None:
    store(builder, builder.trunc(levels, ir.VectorType(I8, GROUP)), builder.add(block, constant(GROUP * part)), 1)


def _write_planes(builder: Any, levels: Any, part: int, block: Any, stride: Any) -> None:
    """Split into 256 * upper + lower, both signed bytes; the upper bytes of all rows come before the lower ones."""
    half, byte = (ir.Constant(_WHOLE, [value] * GROUP) for value in (128, 8))
    lower = builder.add(block, builder.udiv(stride, constant(2)))
    _write_bytes(builder, builder.ashr(builder.add(levels, half), byte), part, block, stride)
    _write_bytes(builder, levels, part, lower, stride)


def _write_pairs(builder: Any, levels: Any, part: int, block: Any, _stride: Any) -> None:
    """Of every four, the first and third, then the second and fourth: the order in which a word of weights is unpacked."""
    order = [first + turn for first in range(0, GROUP, 4) for turn in (0, 2, 1, 3)]
    narrow = builder.trunc(levels, ir.VectorType(I16, GROUP))
    crossed = builder.shuffle_vector(narrow, ir.Constant(narrow.type, ir.Undefined), ir.Constant(_WHOLE, order))
    store(builder, crossed, builder.add(block, constant(2 * GROUP * part)), 2)


row_of_bytes = _row_of(8, _write_bytes)
row_of_planes = _row_of(16, _write_planes)
row_of_pairs = _row_of(16, _write_pairs)


def _halves_of(split: bool) -> Any:
    """An intrinsic that rounds a row of float32 at `source`, a multiple of GROUP of them, to bfloat16, GROUP by GROUP, `stride`
    bytes apart. split: after each GROUP come its remainders, as bfloat16 again: together they have 16 significant bits."""

    def halved(context, source, inputs, target, stride):
        def generate(context, builder, signature, arguments):
            source, inputs, target, stride = arguments
            with counted(builder, builder.udiv(inputs, constant(GROUP))) as loop:
                numbers = load(builder, builder.add(source, builder.mul(loop.index, constant(4 * GROUP))), _NUMBERS, 4)
                place = builder.add(target, builder.mul(loop.index, builder.mul(stride, constant(1 + split))))
                upper = _nearest_half(builder, numbers)
                _store_halves(builder, upper, place)
                if split:
                    whole = builder.bitcast(builder.shl(upper, ir.Constant(_WHOLE, [16] * GROUP)), _NUMBERS)
                    _store_halves(builder, _nearest_half(builder, builder.fsub(numbers, whole)), builder.add(place, stride))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return intrinsic(halved)


halved_row, split_row = _halves_of(False), _halves_of(True)


def _store_halves(builder: Any, bits: Any, place: Any) -> None:
    """bits: of GROUP bfloat16, as int32."""
    store(builder, builder.trunc(bits, ir.VectorType(I16, GROUP)), place, 2)


def _nearest_half(builder: Any, numbers: Any) -> Any:
    """The bits of the nearest bfloat16, ties to even, as int32; NaN stays NaN."""
    bits = builder.bitcast(numbers, _WHOLE)
    sixteen, one, most = (ir.Constant(_WHOLE, [value] * GROUP) for value in (16, 1, 0x7FFF))
    odd = builder.and_(builder.lshr(bits, sixteen), one)
    nearest = builder.lshr(builder.add(bits, builder.add(odd, most)), sixteen)
    return builder.select(builder.fcmp_unordered("uno", numbers, numbers), ir.Constant(_WHOLE, [0x7FC0] * GROUP), nearest)


def _largest(builder: Any, numbers: Any) -> Any:
    """The largest magnitude, as its bits in int32: bits are ordered like magnitudes, with NaN above all."""
    sizes = builder.and_(builder.bitcast(numbers, _WHOLE), ir.Constant(_WHOLE, [0x7FFFFFFF] * GROUP))
    return builder.call(external(builder, f"llvm.vector.reduce.umax.v{GROUP}i32", I32, [_WHOLE]), [sizes])


def _scale(builder: Any, largest: Any, highest: int) -> tuple[Any, Any]:
    """The scale that maps the largest magnitude to `highest`, and its inverse; the inverse is 0 if the scale is tiny or NaN."""
    size = builder.fdiv(builder.bitcast(largest, F32), F32(highest))
    some = builder.fcmp_ordered(">=", size, F32(_SMALLEST))
    return size, builder.select(some, builder.fdiv(F32(1.0), size), F32(0.0))


def _levels(builder: Any, numbers: Any, inverse: Any) -> Any:
    """The nearest integers, as int32."""
    halves = ir.Constant(_NUMBERS, [0.5] * GROUP)
    nearest = builder.fadd(builder.fmul(numbers, splat(builder, inverse, GROUP)), halves)
    nearest = builder.call(external(builder, f"llvm.floor.v{GROUP}f32", _NUMBERS, [_NUMBERS]), [nearest])
    return builder.fptosi(nearest, _WHOLE)


def _sum(builder: Any, levels: Any) -> Any:
    return builder.call(external(builder, f"llvm.vector.reduce.add.v{GROUP}i32", I32, [_WHOLE]), [levels])
