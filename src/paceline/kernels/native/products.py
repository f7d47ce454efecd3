"""Products: rows of activations times packed weights, for any number of rows, with the same bits for each row.

One compiled function per format, called through its address, since a model may have matrices of several formats.

Source: own design; the register tiling is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(ACM TOMS 2008), without splitting any sum over inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types

from paceline.kernels.native import matrix_unit, tall
from paceline.kernels.native.ahead import AHEAD
from paceline.kernels.native.entries import PRODUCT_WORDS
from paceline.kernels.native.formats import FORMATS, Format
from paceline.kernels.native.memory import helper, intrinsic, prefetched
from paceline.kernels.native.tiles import emit_tile, most_rows_of
from paceline.kernels.native.vectors import I64, IN_PAIRS, PANEL, VECTORS, constant, counted_or_none

_ARGUMENTS = PRODUCT_WORDS
"""(rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode) over the panels [low, high).

rows: 1 to `highest_tile`. activations: address of [inputs, rows], as `rows.py` lays them out. weights, outputs: addresses at
panel 0. stride: bytes between rows of outputs. mode: of `tiles`.
"""


def product(name: str) -> Any:
    """The product of a format."""

    def product(rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode):
        _emitted(name, rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode)

    return product


@intrinsic
def call_product(context, address, rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode):
    """Call the product at `address`, from compiled code."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [I64] * _ARGUMENTS)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * (_ARGUMENTS + 1)), generate


@helper
def asked_for(weights):
    """Prefetch the beginning of the next matrix: a product prefetches only its own."""
    for line in range(0, AHEAD, 64):
        prefetched(weights + line)


@intrinsic(prefer_literal=True)
def _emitted(context, name, rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode):
    """The code of a product: a switch over rows to choose the tile, and a loop over panels. name: a format's, a literal."""
    form = FORMATS[name.literal_value]

    def generate(context, builder, signature, arguments):
        arguments = arguments[1:]
        after, more = (builder.append_basic_block(f"product.{name}") for name in ("after", "more"))
        choice = builder.switch(arguments[0], more)
        for count in range(1, matrix_unit.fewest_rows(form)):
            case = builder.append_basic_block(f"product.{count}")
            choice.add_case(ir.Constant(I64, count), case)
            builder.position_at_end(case)
            _over(builder, form, count, arguments)
            builder.branch(after)
        builder.position_at_end(more)
        if matrix_unit.suits(form):
            fills = builder.icmp_signed(">", arguments[0], constant(matrix_unit.highest(form) // 2))
            with builder.if_else(fills) as (two, one):
                with two:
                    _by_unit(builder, form, True, arguments)
                with one:
                    _by_unit(builder, form, False, arguments)
        builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * _ARGUMENTS), generate


def _over(builder: Any, form: Format, count: int, arguments: Any) -> None:
    """All panels, each in one tile, in a tall one or, with still more rows, in two of half a panel; a single row may take two
    panels at once."""
    if count == 1 and IN_PAIRS:
        arguments = _in_pairs(builder, form, arguments)
    if tall.suits(form, count):
        tiles = [tall.emit_tall_tile(builder.module, form, count)]
    else:
        vectors = VECTORS if count <= most_rows_of(form, VECTORS) else VECTORS // 2
        tiles = [emit_tile(builder.module, form, count, vectors, first) for first in range(0, VECTORS, vectors)]
    with _panels(builder, arguments) as panel:
        for tile in tiles:
            builder.call(tile, panel)


def _in_pairs(builder: Any, form: Format, arguments: Any) -> list[Any]:
    """One row and an even number of panels: each panel of the first half together with one of the second half. Returns the
    arguments for the remaining panel, if any."""
    *before, low, high, mode = arguments
    half = builder.ashr(builder.sub(high, low), constant(1))
    middle = builder.add(low, half)
    tile = emit_tile(builder.module, form, 1, VECTORS, 0, panels=2)
    with _panels(builder, [*before, low, middle, mode]) as panel:
        builder.call(tile, [*panel, half])
    return [*before, builder.add(middle, half), high, mode]


def _by_unit(builder: Any, form: Format, two: bool, arguments: Any) -> None:
    """All panels by the matrix unit. two: use two registers of rows, for more rows than one holds."""
    tile = matrix_unit.emit_matrix_tile(builder.module, form, two)
    matrix_unit.configure(builder, builder.mul(arguments[0], constant(matrix_unit.rows_each(form))), two)
    with _panels(builder, arguments) as panel:
        builder.call(tile, [arguments[0], *panel])
    matrix_unit.unit(builder, "tilerelease")


@contextmanager
def _panels(builder: Any, arguments: Any) -> Iterator[list[Any]]:
    """A loop over the panels [low, high); yields a tile's arguments for the current one."""
    _, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode = arguments
    with counted_or_none(builder, builder.sub(high, low), []) as loop:
        place = builder.add(low, loop.index)
        panel = builder.add(weights, builder.mul(place, panel_bytes))
        result = builder.add(outputs, builder.mul(place, constant(4 * PANEL)))
        yield [activations, panel, panel_bytes, inputs, result, stride, mode]
