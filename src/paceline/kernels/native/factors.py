"""Factors: unpack words of packed weights in registers, and multiply integers or bfloat16 there."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from paceline.kernels.native.formats import Format
from paceline.kernels.native.vectors import (
    BYTE_PAIR_PRODUCTS,
    F16,
    HALVES,
    I8,
    LANES,
    MULTIPLIES_BYTES,
    MULTIPLIES_HALVES,
    MULTIPLIES_SIGNED_BYTES,
    PAIR_PRODUCTS,
    PAIRS,
    VECTOR,
    WORDS,
    external,
    fused,
    repeated,
)

WORDS_OF = {
    "fp32": VECTOR,
    "fp16": ir.VectorType(F16, LANES),
    "bf16": WORDS,
    "w16a16": WORDS,
    "int8": WORDS,
    "int4": WORDS,
    "w4a8": WORDS,
    "w8a8": WORDS,
}
"""LLVM type of one register of a panel's words."""


def widened(builder: Any, form: Format, word: Any, step: int) -> Any:
    """Float32 weights of one input, the `step`-th of the inputs that share a word."""
    match form.name:
        case "fp32":
            return word
        case "fp16":
            return builder.fpext(word, VECTOR)
        case "bf16":
            return _half_of(builder, word, step)
    raise ValueError(f"no tile widens the format {form.name!r}")


def _half_of(builder: Any, words: Any, step: int) -> Any:
    """The first or second bfloat16 of each word, as float32."""
    high = builder.shl(words, repeated(16)) if step == 0 else builder.and_(words, repeated(-65536))
    return builder.bitcast(high, VECTOR)


def half_products(builder: Any, sums: Any, left: Any, right: Any) -> Any:
    """Per lane: the sum plus the products of two pairs of bfloat16, the second pair's product added first."""
    if MULTIPLIES_HALVES:
        callee = external(builder, f"llvm.x86.avx512bf16.dpbf16ps.{32 * LANES}", VECTOR, [VECTOR, HALVES, HALVES])
        return builder.call(callee, [sums, builder.bitcast(left, HALVES), builder.bitcast(right, HALVES)])
    for step in (1, 0):
        sums = fused(builder, _half_of(builder, left, step), _half_of(builder, right, step), sums)
    return sums


def whole_numbers(builder: Any, form: Format, word: Any, step: int) -> Any:
    """The `step`-th weights of each lane's word, in the form for multiplication: two of 16 bits or four of 8.

    Of four signed bytes, the first and third form a pair, and the second and fourth, whatever the instruction set.
    """
    match form.name:
        case "int8":
            return builder.bitcast(_signed_bytes(builder, word, odd=step == 1), WORDS)
        case "int4":
            return builder.and_(builder.lshr(word, repeated(4 * step)), repeated(0x000F000F))
        case "w4a8":
            return builder.and_(builder.lshr(word, repeated(4 * step)), repeated(0x0F0F0F0F))
        case "w8a8":
            return word
    raise ValueError(f"no tile multiplies whole numbers of the format {form.name!r}")


def four_products(builder: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
    """Per 32-bit lane: the sum plus the products of four unsigned with four signed bytes; with MULTIPLIES_SIGNED_BYTES, both are
    signed."""
    kind = ir.VectorType(I8, 4 * LANES)
    if MULTIPLIES_SIGNED_BYTES:
        callee = external(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", WORDS, [WORDS, kind, kind])
        return builder.call(callee, [sums, builder.bitcast(unsigned, kind), builder.bitcast(signed, kind)])
    if MULTIPLIES_BYTES:
        bits = 32 * LANES
        callee = external(builder, f"llvm.x86.avx512.vpdpbusd.{bits}", WORDS, [WORDS, kind, kind])
        return builder.call(callee, [sums, builder.bitcast(unsigned, kind), builder.bitcast(signed, kind)])
    for odd in (False, True):
        left = builder.and_(builder.lshr(unsigned, repeated(8)) if odd else unsigned, repeated(0x00FF00FF))
        sums = pair_products(builder, sums, left, builder.bitcast(_signed_bytes(builder, signed, odd), WORDS))
    return sums


def narrow_products(builder: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
    """As `four_products`, with BYTE_PAIR_PRODUCTS, into two sums of 16 bits per lane: enough for a group of weights of four
    bits, 8 * 2 * 15 * 127 at most."""
    kind = ir.VectorType(I8, 4 * LANES)
    callee = external(builder, BYTE_PAIR_PRODUCTS, PAIRS, [kind, kind])
    found = builder.call(callee, [builder.bitcast(unsigned, kind), builder.bitcast(signed, kind)])
    return builder.bitcast(builder.add(builder.bitcast(sums, PAIRS), found), WORDS)


def narrow_sum(builder: Any, start: Any, sums: Any) -> Any:
    """Per 32-bit lane: `start` plus the two sums of `narrow_products`."""
    return pair_products(builder, start, sums, ir.Constant(PAIRS, [1] * 2 * LANES))


def _signed_bytes(builder: Any, words: Any, odd: bool) -> Any:
    """The lower or upper signed byte of every 16 bits, as PAIRS."""
    halves, byte = builder.bitcast(words, PAIRS), ir.Constant(PAIRS, [8] * 2 * LANES)
    return builder.ashr(halves if odd else builder.shl(halves, byte), byte)


def pair_products(builder: Any, sums: Any, left: Any, right: Any) -> Any:
    """Per 32-bit lane: the sum plus the products of two pairs of 16-bit numbers."""
    if PAIR_PRODUCTS:
        callee = external(builder, PAIR_PRODUCTS, WORDS, [PAIRS, PAIRS])
        # LLVM combines it with the addition into one instruction if there is one (VNNI)
        return builder.add(sums, builder.call(callee, [builder.bitcast(left, PAIRS), builder.bitcast(right, PAIRS)]))
    for shift in (16, 0):
        first, second = (builder.ashr(builder.shl(pair, repeated(shift)), repeated(16)) for pair in (left, right))
        sums = builder.add(sums, builder.mul(first, second))
    return sums
