"""Markdown: tables of it, and links to its headings."""

from __future__ import annotations

from collections.abc import Sequence as Many


def table(columns: Many[str], rows: Many[Many[object]]) -> list[str]:
    """The lines of a table and an empty one behind it; none where it would have no rows."""
    lines = [f"| {' | '.join(map(_cell, cells))} |" for cells in (columns, ["---"] * len(columns), *rows)]
    return [*lines, ""] if rows else []


def _cell(content: object) -> str:
    return str(content).replace("|", "\\|").replace("\n", " ")


def anchor(heading: str) -> str:
    """A heading as GitHub links to it, where no other of the page is linked to alike."""
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")
