"""Markdown: tables, plots, and links to headings."""

from __future__ import annotations

from collections.abc import Sequence as Many
from pathlib import Path

_ALTS = {
    "speedup": "speed over plain decoding by task, of whole answers and of decoding alone",
    "acceptance": "acceptance by depth of the draft",
    "verify": "cost of a forward by rows, over one row",
    "step": "where the time of a step goes",
    "latencies": "how latencies are distributed at each load",
    "load": "tokens and requests per second, time to first token and time per output token by requests at once",
}


def table(columns: Many[str], rows: Many[Many[object]]) -> list[str]:
    """The lines of a table, followed by an empty line; no lines if it has no rows."""
    lines = [f"| {' | '.join(map(_cell, cells))} |" for cells in (columns, ["---"] * len(columns), *rows)]
    return [*lines, ""] if rows else []


def _cell(content: object) -> str:
    return str(content).replace("|", "\\|").replace("\n", " ")


def anchor(heading: str) -> str:
    """GitHub's anchor for a heading, if no other heading of the page has the same anchor."""
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def pictured(plots: Many[str], of: str) -> list[str]:
    """Image links to the plots of a record, with alternative texts."""
    return [line for link in plots for line in (f"![{_ALTS[Path(link).stem.rpartition('-')[2]]}: {of}]({link})", "")]
