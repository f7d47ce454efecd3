"""Fitted: tables whose numbers are never cut off, however narrow a terminal is."""

from __future__ import annotations

from rich.console import Console
from rich.measure import measure_renderables
from rich.table import Table

_UNLIMITED = 1 << 16
"""Characters of a line that nothing narrows."""


def print_fitted(console: Console, table: Table) -> None:
    """Print a table whose columns of names, those that may wrap, are narrowed, the widest first, until a terminal has room for it
    or no name has a part left to break behind. A file has room for all."""
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
    # rich would squeeze the numbers too
    table.width = console.measure(table, options=wide).maximum
    console.print(table, soft_wrap=True)
