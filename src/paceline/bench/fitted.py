"""Fitted: tables whose numbers are never cut off, even in a narrow terminal."""

from __future__ import annotations

from rich.console import Console
from rich.measure import measure_renderables
from rich.table import Table

_UNLIMITED = 1 << 16
"""Characters of a line without a width limit."""


def print_fitted(console: Console, table: Table) -> None:
    """Print a table. In a terminal, its columns of names (those that may wrap) are narrowed, the widest first, until the table
    fits or no name can be broken further. In a file nothing is narrowed."""
    wide = console.options.update_width(_UNLIMITED)
    names = [column for column in table.columns if not column.no_wrap]
    ranges = [measure_renderables(console, wide, [column.header, *column.cells]) for column in names]
    widths = [found.maximum for found in ranges]
    excess = console.measure(table, options=wide).maximum - console.width if console.is_terminal else 0
    while excess > 0 and (narrowable := [at for at, found in enumerate(ranges) if widths[at] > found.minimum]):
        widths[max(narrowable, key=lambda at: widths[at])] -= 1
        excess -= 1
    for column, width in zip(names, widths, strict=True):
        column.width = width
    # without a fixed width rich would narrow the numbers too
    table.width = console.measure(table, options=wide).maximum
    console.print(table, soft_wrap=True)
