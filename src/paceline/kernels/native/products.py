"""Products: rows of activations times packed weights, for any number of rows, with the same bits for each row.

One compiled function per format, called through its address: whoever holds matrices of several formats calls each one's own.

Source: own design; the register tiling is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(ACM TOMS 2008), with every sum over inputs left whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir

from paceline.kernels.native.compiled import SOURCES
from paceline.kernels.native.formats import FORMATS, Format
from paceline.kernels.native.memory import intrinsic
from paceline.kernels.native.tiles import MOST_ROWS, emit_tile, most_rows
from paceline.kernels.native.vectors import I64, PANEL, VECTORS, constant

import numba  # isort: skip  (after `vectors`, which tells it how wide registers are)
from numba import types  # isort: skip

_ARGUMENTS = 10
SIGNATURE = types.void(*[types.int64] * _ARGUMENTS)
"""(rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode) over the panels [low, high).

rows: 1 to MOST_ROWS. activations: address of [inputs, rows], as `rows.py` lays them out. weights, outputs: addresses at panel 0.
stride: bytes between rows of outputs. mode: of `tiles`.
"""


@cache
def product_address(name: str) -> int:
    """The address of the product of a format, compiled for this machine when it is first asked for."""
    return _product_of(name, SOURCES).address


def _product_of(name: str, sources: str) -> Any:
    def product(rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode):
        _emitted(name, sources, rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode)

    return numba.cfunc(SIGNATURE, cache=True)(product)


@intrinsic
def call_product(context, address, rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode):
    """Call the product at `address`, from compiled code."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [I64] * _ARGUMENTS)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * (_ARGUMENTS + 1)), generate


@intrinsic(prefer_literal=True)
def _emitted(context, name, sources, rows, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode):
    """The code of a product: a choice of the tile by rows, and a loop over panels. name: a format's, known when compiling."""
    form = FORMATS[name.literal_value]

    def generate(context, builder, signature, arguments):
        arguments = arguments[2:]
        after = builder.append_basic_block("product.after")
        choice = builder.switch(arguments[0], after)
        for count in range(1, MOST_ROWS + 1):
            case = builder.append_basic_block(f"product.{count}")
            choice.add_case(ir.Constant(I64, count), case)
            builder.position_at_end(case)
            _over(builder, form, count, arguments)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(name, sources, *[types.int64] * _ARGUMENTS), generate


def _over(builder: Any, form: Format, count: int, arguments: Any) -> None:
    """A loop over the panels [low, high), each in one tile or, where the rows are too many, in two halves."""
    _, activations, weights, panel_bytes, inputs, outputs, stride, low, high, mode = arguments
    vectors = VECTORS if count <= most_rows(VECTORS) else VECTORS // 2
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("panels", "panel", "panels.after"))
    builder.branch(head)
    builder.position_at_end(head)
    place = builder.phi(I64)
    place.add_incoming(low, before)
    builder.cbranch(builder.icmp_signed("<", place, high), body, after)
    builder.position_at_end(body)
    panel = builder.add(weights, builder.mul(place, panel_bytes))
    result = builder.add(outputs, builder.mul(place, constant(4 * PANEL)))
    for first in range(0, VECTORS, vectors):
        tile = emit_tile(builder.module, form, count, vectors, first)
        builder.call(tile, [activations, panel, panel_bytes, inputs, result, stride, mode])
    place.add_incoming(builder.add(place, constant(1)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)
