"""Common to all plots: matplotlib, an optional package, set up to write PNG files without opening a window."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from paceline.bench.errors import BenchError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def pyplot_for_files() -> ModuleType:
    """matplotlib.pyplot, which takes a while to import. Raises BenchError if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise BenchError("plots need matplotlib: install paceline[bench]") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def saved(figure: Figure, stem: Path, name: str) -> Path:
    """Write STEM-name.png. Raises BenchError on failure."""
    file = stem.with_name(f"{stem.name}-{name}.png")
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise BenchError(f"cannot write {file}: {error.strerror}") from error
    return file
