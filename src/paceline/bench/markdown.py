"""Markdown: tables of it."""

from __future__ import annotations

from collections.abc import Sequence as Many


def table(columns: Many[str], rows: Many[Many[object]]) -> list[str]:
    """The lines of a table and an empty one behind it; none where it would have no rows."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (columns, ["---"] * len(columns), *rows)]
    return [*lines, ""] if rows else []
