"""Terminal output of a load: progress while it runs, then its tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.bench.cells import number
from paceline.bench.fitted import print_fitted
from paceline.bench.load.failures import failures
from paceline.bench.load.measures import TIMES
from paceline.bench.load.settings import Load
from paceline.bench.load.sweep import Watch

_BUSY = 0.5
"""Share of a processor: a generator that uses more delays chunks. It needs about 0.1 ms per chunk."""


def watched(console: Console, quiet: bool) -> Watch:
    """A progress bar on a terminal; nothing elsewhere, or if `quiet`."""

    @contextmanager
    def watch(what: str, total: int) -> Iterator[Callable[[], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)

    return watch


def show(console: Console, record: dict[str, Any]) -> None:
    """Print the record of a run."""
    server, settings = record["server"], record["settings"]
    console.print(f"{server['model']} at {server['url']}, {settings['endpoint']}", highlight=False, soft_wrap=True)
    for name in ("body", "against"):
        if settings[name] is not None and (settings["against"] is not None or settings[name]):
            said = json.dumps(settings[name], ensure_ascii=False) if settings[name] else "as the server does it"
            console.print(f"{name}: {said}", highlight=False, soft_wrap=True)
    print_fitted(console, _throughput(record))
    print_fitted(console, _latencies(record))
    if settings["against"] is not None:
        print_fitted(console, _comparison(record))
    for line in _notes(record):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_footing(record), style="dim", highlight=False, soft_wrap=True)


def _table(left: int, *columns: str) -> Table:
    """An empty table: the first `left` columns are for words, the others for numbers."""
    table = Table(header_style="dim", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", no_wrap=place >= left)
    return table


def _ms(seconds: float) -> str:
    return format(seconds * 1e3, ".2f" if seconds < 0.1 else ".1f")


def _rows(record: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every load and body with its results."""
    for level in record["levels"]:
        for name, found in level["bodies"].items():
            yield str(Load(**level["load"])), name, found


def _throughput(record: dict[str, Any]) -> Table:
    both, good = record["settings"]["against"] is not None, record["settings"]["objective"] is not None
    bad = any(found["errors"] for _, _, found in _rows(record))
    columns = ["ok", *(["refused", "failed"] if bad else []), "requests/s", "tokens/s", *(["good/s", "good"] if good else [])]
    table = _table(1 + both, "load", *(["body"] if both else []), *columns, "tau", "/chunk")
    for load, name, found in _rows(record):
        cells = [load, name] if both else [load]
        cells.append(f"{found['answered']}/{found['sent']}")
        cells += [str(found["refused"]), str(sum(found["errors"].values()) - found["refused"])] if bad else []
        cells += [f"{found['requests_per_s']:.2f}", f"{found['tokens_per_s']:.1f}"]
        if goodput := found["goodput"]:
            cells += [f"{goodput['requests_per_s']:.2f}", f"{goodput['share']:.0%}"]
        each = found["tokens"] / found["chunks"] if found["chunks"] else None
        table.add_row(*cells, number(found["tau"], ".2f"), number(each, ".2f"))
    return table


def _latencies(record: dict[str, Any]) -> Table:
    both = record["settings"]["against"] is not None
    table = _table(2 + both, "load", *(["body"] if both else []), "ms", "mean", "p50", "p90", "p99")
    for load, name, found in _rows(record):
        cells = [load, name] if both else [load]
        for measure, words in TIMES.items():
            if summary := found[measure]:
                table.add_row(*cells, words, *(_ms(summary[at]) for at in ("mean", "p50", "p90", "p99")))
                cells = [""] * len(cells)
        table.add_section()
    return table


def _comparison(record: dict[str, Any]) -> Table:
    table = _table(2, "load", "", "body", "against", "ratio", "95 % of ratio")
    for level in record["levels"]:
        load, against = str(Load(**level["load"])), level["against"]
        for name, terms in against["means"].items():
            rate = name.endswith("_per_s")
            words = name.replace("_per_s", "/s") if rate else f"mean {TIMES[name]}, ms"
            body, other = (f"{terms[side]:.2f}" if rate else _ms(terms[side]) for side in ("body", "against"))
            interval = against["interval"] if name == "tokens_per_s" else None
            table.add_row(
                load, words, body, other, number(terms["ratio"], ".3f"),
                f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "",
            )  # fmt: skip
            load = ""
        table.add_section()
    return table


def _notes(record: dict[str, Any]) -> Iterator[str]:
    """Notes that a reader needs to interpret the numbers."""
    settings = record["settings"]
    for load, name, what in failures(record):
        yield f"{load}{f' ({name})' if settings['against'] is not None else ''}: {what}"
    for level in record["levels"]:
        if level["against"] is not None:
            equal = level["against"]["equal_texts"]
            yield f"{Load(**level['load'])}: {equal['equal']} of {equal['of']} answers have the same text with both bodies"
    if (found := record["find_rate"]) is not None:
        what = f"{found['needed_share']:.0%} of requests within {found['objective']}"
        if found["held_per_s"] is None:
            yield f"no rate that was tried held {what}; the lowest was {found['failed_per_s']:g}/s"
        else:
            above = f"{found['failed_per_s']:.3g}/s did not" if found["failed_per_s"] else "no higher one was tried"
            yield f"{found['held_per_s']:.3g}/s held {what}; {above} ({found['requests_per_run']} requests a run)"
    sent = sum(found["sent"] for _, _, found in _rows(record))
    if settings["distinct_prompts"] < sent and not settings["salted"]:
        yield (
            f"{settings['distinct_prompts']} different prompts for {sent} requests: a server that keeps prefixes"
            " or past answers gains by it; --salt gives each request a cache of its own, where the server knows cache_salt"
        )
    if settings["trace_scale"] is not None:
        answers = sum(row["tokens"] or 0 for row in record["levels"][0]["bodies"]["body"]["requests"])
        yield f"the trace's lengths times {settings['trace_scale']:.4g}; {answers} tokens of {settings['most_tokens']} at most"
    late = max((found["lag_s"]["p99"] for _, _, found in _rows(record)), default=0.0)
    if late > 0.01:
        yield f"requests were sent late (p99 {late * 1e3:.0f} ms): the machine of the generator was busy"
    if (share := record["generator"]["processor_share"]) > _BUSY:
        yield f"the generator took {share:.0%} of a processor: some of these latencies are its own"


def _footing(record: dict[str, Any]) -> str:
    counted = {"usage": "the server's usage", "tokenize": "the server's tokenizer", "chunks": "chunks, for want of better"}
    by = " and ".join(dict.fromkeys(counted[part] for level in record["levels"] for part in level["counted_by"].split(" and ")))
    return (
        f"tokens counted by {by}; ITL: a chunk of k tokens is one gap and k - 1 zeros; the generator took"
        f" {record['generator']['processor_share']:.0%} of a processor; {record['machine']['processor']}"
    )
