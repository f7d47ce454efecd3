"""Transposition: convert rows of numbers to the layout in which tiles read activations.

Blocks of LANES by LANES numbers are transposed in registers: number by number it would take as long as computing the exponentials
(attention's weights) before it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from paceline.kernels.native.memory import intrinsic
from paceline.kernels.native.tiles import MOST_ROWS
from paceline.kernels.native.vectors import I32, LANES, VECTOR, ZERO, constant, counted, load, store


@intrinsic
def turned(context, source, stride, rows, blocks, target):
    """target[k, r] = source[r, k] for r < rows and k < LANES * blocks, with rows from 1 to MOST_ROWS and blocks from 1 on.

    source, target: addresses of float32; stride: bytes between rows of the source.
    """

    def generate(context, builder, signature, arguments):
        after = builder.append_basic_block("turned.after")
        choice = builder.switch(arguments[2], after)
        for count in range(1, MOST_ROWS + 1):
            case = builder.append_basic_block(f"turned.{count}")
            choice.add_case(constant(count), case)
            builder.position_at_end(case)
            _over(builder, count, arguments)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _over(builder: Any, count: int, arguments: Any) -> None:
    """A loop over the blocks of `count` rows."""
    source, stride, _, blocks, target = arguments
    lines = [builder.add(source, builder.mul(stride, constant(row))) for row in range(count)]
    with counted(builder, blocks) as loop:
        offset = builder.mul(loop.index, constant(4 * LANES))
        place = builder.add(target, builder.mul(loop.index, constant(4 * LANES * count)))
        found = [load(builder, builder.add(line, offset), VECTOR, 4) for line in lines]
        if count == 1:
            store(builder, found[0], place, 4)
            return
        squares = [_turned(builder, found[first : first + LANES]) for first in range(0, count, LANES)]
        # in ascending order: excess lanes of a store are overwritten by later stores, except at the end
        for lane in range(LANES):
            for group, square in enumerate(squares):
                at = lane * count + group * LANES
                value = square[lane] if at + LANES <= LANES * count else _first(builder, square[lane], count - group * LANES)
                store(builder, value, builder.add(place, constant(4 * at)), 4)


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """LANES vectors, of which the k-th holds the k-th number of every row; missing rows count as zero."""
    square, width = [*rows, *[ZERO] * (LANES - len(rows))], 1
    while width < LANES:
        # swap the halves of every square of 2 * width that lie off its diagonal
        low = [lane if not lane & width else LANES + lane - width for lane in range(LANES)]
        high = [lane + width if not lane & width else LANES + lane for lane in range(LANES)]
        following = list(square)
        for at in range(LANES):
            if not at & width:
                pair = square[at], square[at + width]
                following[at], following[at + width] = (builder.shuffle_vector(*pair, _mask(lanes)) for lanes in (low, high))
        square, width = following, 2 * width
    return square


def _first(builder: Any, vector: Any, count: int) -> Any:
    """The first `count` numbers of a vector that has more."""
    return builder.shuffle_vector(vector, vector, _mask(list(range(count))))


def _mask(lanes: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
