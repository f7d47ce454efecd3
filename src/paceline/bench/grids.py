"""Grids: heat maps of a number for many modes and a few columns; higher numbers have darker cells.

They replace bars and lines when there are more modes than distinguishable colours.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW_INCHES, _MARGIN_INCHES = 0.32, 1.5
_DARK = 0.6
"""Share of the highest number above which a cell gets white text."""


def grid(axes: Axes, rows: Many[str], columns: Many[str], values: Many[Many[float | None]]) -> None:
    """values: by row and column, at least 0; None for an empty cell."""
    tall_enough(axes, len(rows))
    most = max((value for row in values for value in row if value is not None), default=0.0) or 1.0
    known = [[value if value is not None else float("nan") for value in row] for row in values]
    axes.imshow(known, cmap="Blues", vmin=0.0, vmax=most, aspect="auto")
    for at, row in enumerate(values):
        for place, value in enumerate(row):
            if value is not None:
                colour = "white" if value > _DARK * most else "black"
                axes.text(place, at, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(columns)), list(columns), fontsize=8)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def tall_enough(axes: Axes, rows: int) -> None:
    """Make the figure tall enough for this many named rows."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, max(height, rows * _ROW_INCHES + _MARGIN_INCHES))
