"""Tall tiles: more rows than have room in registers beside a whole panel, where reading still takes as long as multiplying.

A tile of half a panel reads only half of every line that comes, and has to ask for the next panel long before: memory and
multiplication take turns (`tiles`). A tall one walks the panel in blocks that the first-level cache holds, once for each part of
its rows, with sums on the stack in between. What lies ahead comes meanwhile, a share of it with each part. With still more rows
multiplication is all that counts, and storing sums in between takes longer than it saves.

A sum takes its inputs in the same order as in any other tile, so its bits are the same.
"""

from __future__ import annotations

from typing import Any

from paceline.kernels.native.formats import Format
from paceline.kernels.native.tiles import Body, begun, ended, most_rows, places_of
from paceline.kernels.native.vectors import VECTORS, in_blocks, once

_BLOCK_BYTES = 4096
"""Of a block: with what is on its way the first-level cache holds it, and sums are not stored more often than they need be."""


def suits(form: Format, rows: int) -> bool:
    """Whether so many rows make a tall tile. Whole numbers of 16 bits, and those with scales by group, are all multiplication."""
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
