"""Needs: the scratch memory that callers of the kernels must provide, and the layout of activations."""

from __future__ import annotations

from paceline.kernels.native import matrix_unit
from paceline.kernels.native.formats import Format, padded
from paceline.kernels.native.layout import BYTES, FLOATS, GROUPED_BYTES, GROUPED_WORDS, HALVES, HALVES_AND_REST, WORDS
from paceline.kernels.native.tiles import MOST_ROWS, most_rows_of
from paceline.kernels.native.vectors import PANEL, VECTORS

_TOGETHER = 2**20
"""Bytes of weights that stay in a core's cache while several tiles are multiplied with them."""


def highest_tile(form: Format) -> int:
    """Rows of the tallest tile of a format."""
    return matrix_unit.highest(form) if matrix_unit.suits(form) else min(MOST_ROWS, most_rows_of(form, VECTORS // 2))


def laid_as(form: Format) -> int:
    """The layout of activations for a format, one of those in `layout`."""
    if form.scaled:
        of_bytes = form.activation_bits == 8
        return (GROUPED_BYTES if of_bytes else GROUPED_WORDS) if form.by_group else BYTES if of_bytes else WORDS
    if form.halved:
        return HALVES
    return HALVES_AND_REST if matrix_unit.suits(form) else FLOATS


def panels_together(form: Format, panel_bytes: int) -> int:
    """The best number of panels to multiply with one tile of rows before the next, if there are several tiles.

    A matrix unit is so fast that it needs activations in the L1 cache; with vectors it is better to keep the weights there.
    """
    return max(_TOGETHER // panel_bytes, 1) if matrix_unit.suits(form) else 1


def lines_bytes(widest: int, rows: int) -> int:
    """Bytes per thread for a tile's rows before they are laid out. widest: most floats of a row. rows: of the step."""
    return 4 * widest * min(rows, MOST_ROWS)


def scratch_bytes(head_size: int, rows: int, longest: int) -> int:
    """Bytes per thread for attention: queries, outputs, a tile of scores and one of weights with their sums, a gathered tail.

    rows: of the step. longest: slots of its longest sequence. A tail holds first the keys, then the values, of a node's ancestors
    that are rows of the step themselves.
    """
    width, tail = padded(head_size, PANEL), padded(min(rows, longest), PANEL)
    return 4 * (2 * MOST_ROWS * width + 2 * MOST_ROWS * (longest + PANEL) + PANEL + (tail + PANEL) * width)
