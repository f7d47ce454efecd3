"""Needs: what a caller of the kernels has to set aside for them, and how it lays out what it hands over."""

from __future__ import annotations

from paceline.kernels.native import matrix_unit
from paceline.kernels.native.formats import Format, padded
from paceline.kernels.native.layout import BYTES, FLOATS, GROUPED, HALVES, HALVES_AND_REST, WORDS
from paceline.kernels.native.tiles import MOST_ROWS, most_rows_of
from paceline.kernels.native.vectors import PANEL, VECTORS

_TOGETHER = 2**20
"""Bytes of weights that stay in a core's cache while tile after tile is multiplied with them."""


def highest_tile(form: Format) -> int:
    """Rows of the tallest tile of a format."""
    return matrix_unit.highest(form) if matrix_unit.suits(form) else min(MOST_ROWS, most_rows_of(form, VECTORS // 2))


def laid_as(form: Format) -> int:
    """What activations become for a format, of those of `layout`."""
    if form.by_group:
        return GROUPED
    if form.scaled:
        return BYTES if form.activation_bits == 8 else WORDS
    if form.halved:
        return HALVES
    return HALVES_AND_REST if matrix_unit.suits(form) else FLOATS


def panels_together(form: Format, panel_bytes: int) -> int:
    """Panels that are best multiplied with one tile of rows before the next, where there are several tiles.

    A matrix unit is so fast that its activations have to be in the nearest cache; vectors would rather have the weights there.
    """
    return max(_TOGETHER // panel_bytes, 1) if matrix_unit.suits(form) else 1


def lines_bytes(widest: int, rows: int) -> int:
    """Bytes one thread needs for the rows of a tile on their way into it. widest: floats of a row at most. rows: of the step."""
    return 4 * widest * min(rows, MOST_ROWS)


def scratch_bytes(head_size: int, rows: int, longest: int) -> int:
    """Bytes one thread needs: queries, outputs, a tile of scores and one of weights with their sums, a gathered tail.

    rows: of the step. longest: slots of its longest sequence. A tail holds keys or values, one after the other, of ancestors
    that are rows of the step themselves.
    """
    width, tail = padded(head_size, PANEL), padded(min(rows, longest), PANEL)
    return 4 * (2 * MOST_ROWS * width + 2 * MOST_ROWS * (longest + PANEL) + PANEL + (tail + PANEL) * width)
