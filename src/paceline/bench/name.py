"""Name: a name in a table, which is wrapped only between its parts."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_ENDS = re.compile(r"(?<=[-,+@^:/ ])(?! )")
"""Places after the separators in a spec, a path, a model's name or a phrase."""


class Name:
    """A cell for rich: its minimum width is that of its longest part, its maximum one line."""

    def __init__(self, text: str) -> None:
        self.text, self._parts = text, _ENDS.split(text)

    def lines(self, width: int) -> list[str]:
        """The name in lines of at most `width` cells; a wider part gets its own line."""
        found = [""]
        for part in self._parts:
            if found[-1] and cell_len(found[-1]) + cell_len(part.rstrip()) > width:
                found.append("")
            found[-1] += part
        return [line.rstrip() for line in found]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(cell_len(part.rstrip()) for part in self._parts), cell_len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(self.lines(options.max_width)))
