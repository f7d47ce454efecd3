"""Tall tiles: more rows than fit in registers with a whole panel, while reading still takes as long as multiplying.

A tile of half a panel uses only half of every cache line it loads, and has to prefetch the next panel long before: memory access
and multiplication alternate (`tiles`). A tall tile walks the panel in blocks that fit in the L1 cache, once for each part of its
rows, with sums on the stack in between. The memory ahead is prefetched meanwhile, a share of it by each part. With still more
rows multiplication dominates, and storing sums in between costs more than it saves.

A sum takes its inputs in the same order as in any other tile, so its bits are the same.
"""

from __future__ import annotations

from typing import Any

from paceline.kernels.native.formats import Format
from paceline.kernels.native.tiles import Body, begun, ended, most_rows, places_of
from paceline.kernels.native.vectors import VECTORS, in_blocks, once

_BLOCK_BYTES = 4096
"""Bytes of a block: small enough for the L1 cache together with prefetched data, but no smaller, as sums are stored per block."""


def suits(form: Format, rows: int) -> bool:
    """Whether so many rows form a tall tile. Not for 16-bit integers or scales by group, where multiplication dominates."""
    most = most_rows(VECTORS)
    return most < rows <= 5 * most // 3 and form.activation_bits <= 8 and not form.by_group


def emit_tall_tile(module: Any, form: Format, rows: int) -> Any:
    """Declare and define a tall tile over a panel, once per module. Its arguments are those of `tiles.emit_tile`."""

    def define(builder, activations, panel, panel_bytes, inputs, outputs, stride, mode):
        places = places_of(builder, outputs, stride, rows, range(VECTORS))
        start = begun(builder, places, mode)
        half = (rows + 1) // 2
        bodies = [
            Body(builder, form, high - low, VECTORS, 0, [panel], panel_bytes, inputs, laid=rows, low=low, parts=2)
            for low, high in ((0, half), (half, rows))
        ]
        own = [start[body.low * VECTORS : (body.low + body.rows) * VECTORS] for body in bodies]
        running = [body.kept(body.opened(activations, inputs, begin)) for body, begin in zip(bodies, own, strict=True)]
        with in_blocks(builder, bodies[0].words_in(inputs), _BLOCK_BYTES // form.bytes_together) as (before, count):
            for part, (body, kept) in enumerate(zip(bodies, running, strict=True)):
                body.block = (before, count, part)
                sums = body.walked(before, count, [builder.load(place) for place in kept], body.step(activations))
                for place, value in zip(kept, sums, strict=True):
                    builder.store(value, place)
        for body, begin, kept in zip(bodies, own, running, strict=True):
            sums = body.closed(activations, inputs, begin, [builder.load(place) for place in kept])
            ended(builder, places[body.low : body.low + body.rows], mode, sums)

    return once(module, f"tall_tile_{form.name}_{rows}", 7, define)
