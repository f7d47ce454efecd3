"""What becomes of a benchmark's record: kept in a folder, printed, and plotted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.cli.terminal import out, tell_json

Record = dict[str, Any]


def told(
    record: Record,
    out_dir: Path | None,
    as_json: bool,
    written: Callable[[Record, Path], Path],
    show: Callable[[Console, Record], None],
    plot: Callable[[Record, Path], object],
) -> None:
    """Keep the record in `out_dir`, if there is one, with its plots, and print it. written, show, plot: of this kind of record;
    raises their BenchError."""
    # first, since printing fails if the reader of a pipe has left
    file = written(record, out_dir) if out_dir is not None else None
    if as_json:
        tell_json(record)
    else:
        show(out, record)
    if file is not None:
        # last, since plots need a package that may be missing
        plot(record, file.with_suffix(""))
