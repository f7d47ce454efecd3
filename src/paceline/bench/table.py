"""Terminal output of a run: progress bars while it runs, then its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from statistics import median
from time import perf_counter
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paceline.bench.cells import batches, forwards, grown_to, model, number, rates, speed
from paceline.bench.circumstances import contended, counted, left_out, on_fewer_cores, peers, together, without_core
from paceline.bench.files import threads
from paceline.bench.fitted import print_fitted
from paceline.bench.name import Name
from paceline.bench.runner import Watch

_A_WHILE_S = 1.0


def watched(console: Console, quiet: bool) -> Watch:
    """Progress bars on a terminal, elsewhere a line after each stage that took long; nothing if `quiet`."""

    @contextmanager
    def watch(what: str, total: int) -> Iterator[Callable[[], None]]:
        began = perf_counter()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
            task = bar.add_task(what, total=total if total > 1 else None)
            yield lambda: bar.advance(task)
        took_s = perf_counter() - began
        if total > 1 and took_s >= _A_WHILE_S and not (quiet or console.is_terminal):
            console.print(f"{what}: {took_s:.0f} s", highlight=False, soft_wrap=True)

    return watch


def show(console: Console, record: dict[str, Any]) -> None:
    """Print the record of a run."""
    size = model(record)
    if grown := record["grown"]:
        size += f"; GROWN from {grown['from']}: the same function in {grown_to(grown)}, not a better model"
    console.print(size, highlight=False, soft_wrap=True)
    _print(console, _speeds(record))
    for line in left_out(record):
        console.print(line, style="yellow", highlight=False, soft_wrap=True)
    for line in peers(record):
        console.print(line, highlight=False, soft_wrap=True)
    for row in record["rows"]:
        if "error" in row:
            console.print(f"{row['mode']} failed in {row['task']}: {row['error']}", highlight=False, soft_wrap=True)
    if record["against_peers"]:
        _print(console, _against(record))
    if record["batches"]:
        _print(console, _batches(record))
    if record["acceptance_by_depth"]:
        _print(console, _acceptance(record))
    _print(console, _verify(record))
    if record["verify_cost"]["floor"] is not None:
        console.print(_floor(record["verify_cost"]["floor"]), highlight=False, soft_wrap=True)
    console.print(_first_tokens(record), highlight=False, soft_wrap=True)
    _print(console, _steps(record))
    if times := record["contended"]:
        console.print(contended(times), style="yellow", highlight=False, soft_wrap=True)
    if text := without_core(record):
        console.print(text, style="yellow", highlight=False, soft_wrap=True)
    if text := together(record):
        style = "yellow" if on_fewer_cores(record) else "dim"
        console.print(text, style=style, highlight=False, soft_wrap=True)
    console.print(_footing(record), style="dim", highlight=False, soft_wrap=True)


def _print(console: Console, table: Table) -> None:
    """Print a table below its title, which may be wider than the table."""
    title, table.title = table.title, None
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    print_fitted(console, table)


def _table(title: str, names: int | tuple[int, ...], *columns: str) -> Table:
    """names: the columns with names, or how many of the first columns; names are wrapped if room is short, numbers never are."""
    # half of rich's default padding, since nine columns leave little room in 80 characters
    table = Table(title=title, header_style="dim", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for place, column in enumerate(columns):
        of_names = place < names if isinstance(names, int) else place in names
        header = Name(column) if of_names else column
        table.add_column(header, justify="left" if of_names else "right", no_wrap=not of_names)
    return table


def _add_row(table: Table, *cells: str) -> None:
    table.add_row(*(cell if column.no_wrap else Name(cell) for column, cell in zip(table.columns, cells, strict=True)))


def _speeds(record: dict[str, Any]) -> Table:
    heat = record["settings"].get("temperature", 0.0)
    table = _table(
        f"{f'temperature {heat:g}' if heat else 'greedy'}, one request at a time: tokens/s of whole answers, of decoding alone;"
        " gain over plain decoding here", 2,
        "task", "mode", "tokens", "rate", "gain", "decoding", "gain", "tau", "same",
    )  # fmt: skip
    task = None
    for row in record["rows"]:
        if "error" in row:
            continue
        if task not in (None, row["task"]):
            table.add_section()
        _add_row(table, row["task"] if row["task"] != task else "", row["mode"], *speed(record, row))
        task = row["task"]
    return table


def _against(record: dict[str, Any]) -> Table:
    table = _table(
        "against peers: plain decoding, and the fastest mode of each; tokens/s", (0, 1, 2, 3, 5),
        "task", "peer", "of", "ours", "rate", "theirs", "rate", "ratio",
    )  # fmt: skip
    for entry in record["against_peers"]:
        for kind in ("plain", "best", "decode_plain", "decode_best"):
            # the fastest mode may be plain decoding
            if kind in entry and not (kind.endswith("best") and entry[kind] == entry.get(kind.replace("best", "plain"))):
                versus, timed = entry[kind], "decoding" if kind.startswith("decode_") else "answers"
                ours, theirs, ratio = rates(versus)
                mode = versus["theirs"].removeprefix(f"{entry['peer']} ")
                _add_row(table, entry["task"], entry["peer"], timed, versus["ours"], ours, mode, theirs, ratio)
    return table


def _batches(record: dict[str, Any]) -> Table:
    title = "many requests at once, of the same few prompts: who learns from other requests gains more than elsewhere"
    table = _table(title, 2, "task", "mode", "batch", "tokens/s", "plain tokens/s", "ratio", "same text")
    for cells in batches(record):
        _add_row(table, *cells)
    return table


def _verify(record: dict[str, Any]) -> Table:
    by_engine = forwards(record)
    title = f"a forward by rows after {record['verify_cost']['context_tokens']} tokens: median ms, over one row"
    table = _table(title, 1, "rows", *(cell for name in by_engine for cell in (name, "")))
    for rows in next(iter(by_engine.values())):
        _add_row(table, rows, *(cell for of in by_engine.values() for cell in of[rows]))
    return table


def _floor(floor: dict[str, Any]) -> str:
    read = f"{floor['bytes'] / 1e6:.0f} MB of weights are read in {floor['reading_ms']:.2f} ms"
    return f"{read}, a forward of one row takes {floor['row_ms']:.2f} ms, {floor['ratio']:.2f} times that"


def _first_tokens(record: dict[str, Any]) -> str:
    prefill = record["prefill"]
    times = ", ".join(f"{name} {ms:.1f} ms" for name, ms in prefill["ms"].items())
    return f"first token after a prompt of {prefill['tokens']} tokens: {times}\n"


def _steps(record: dict[str, Any]) -> Table:
    rows = [row for row in record["rows"] if "step_ms" in row]
    last = rows[-1]["task"]
    rows = [row for row in rows if row["task"] == last]
    table = _table(f"a step after the first tokens, {last}: mean ms by part", 1, "mode", *rows[0]["step_ms"])
    for row in rows:
        _add_row(table, row["mode"], *(f"{ms:.3f}" for ms in row["step_ms"].values()))
    return table


def _acceptance(record: dict[str, Any]) -> Table:
    task, modes = list(record["acceptance_by_depth"].items())[-1]
    table = _table(f"acceptance by depth, {task}", tuple(range(1, len(modes) + 1)), "depth", *modes)
    for depth, shares in enumerate(zip_longest(*modes.values()), 1):
        _add_row(table, str(depth), *(number(share, ".2f") for share in shares))
    return table


def _spread(record: dict[str, Any]) -> str:
    """By how much gains differ between repeats, relative to the gain; empty for a single repeat."""
    found = [
        (gain[f"{kind}range"][1] - gain[f"{kind}range"][0]) / gain[f"{kind}ratio"]
        for modes in record["speedup"].values()
        for gain in modes.values()
        for kind in ("", "decode_")
        if f"{kind}range" in gain
    ]
    return (
        f", whose gains differ by {median(found):.0%} in the middle of all cells and by up to {max(found):.0%}" if found else ""
    )


def _footing(record: dict[str, Any]) -> str:
    memory, versions = record["memory"], record["versions"]
    line = f"medians of {counted(record['settings']['repeats'], 'repeat')} in turns{_spread(record)}; {threads(record)}, "
    line += f"{record['machine']['processor']}, torch {versions['torch']}, paceline {versions['paceline']}"
    if memory["peak_resident_bytes"] is not None:
        peak, weights, kv = (memory[f"{name}_bytes"] / 1e6 for name in ("peak_resident", "weights", "kv"))
        line += f"; peak resident of one answer {peak:.0f} MB (weights {weights:.0f}, keys and values {kv:.0f})"
    return line
