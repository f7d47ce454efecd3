"""Name: a drafter's or a task's in a table, which goes on in the next line only where one of its parts ends."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_ENDS = re.compile(r"(?<=[-,+@^:/ ])(?! )")
"""Behind what joins the parts of a spec string, of a path, of a model's name or of a phrase."""


class Name:
    """A cell for rich: at its narrowest as wide as its longest part, at its widest one line."""

    def __init__(self, text: str) -> None:
        self.text, self._parts = text, _ENDS.split(text)

    def lines(self, width: int) -> list[str]:
        """It in lines of at most `width` cells; a part that is wider has one of its own."""
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
