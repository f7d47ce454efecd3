"""Run page: one run of `paceline bench` as a section of the benchmark page. Older records have fewer fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.bench.batches import TURN_S
from paceline.bench.cells import batches, forwards, grown_to, model, rates, speed
from paceline.bench.circumstances import circumstances
from paceline.bench.files import title
from paceline.bench.loops import LONGEST
from paceline.bench.lost import lost
from paceline.bench.markdown import pictured, table


def run_called(record: dict[str, Any], file: str) -> str:
    """A run's name among runs of all machines. file: of the record, relative to the folder of records."""
    folder = Path(file).parent.name
    return title(record) + (f", {folder}" if folder else "")


def run_section(record: dict[str, Any], file: str, plots: list[str]) -> list[str]:
    """The lines of the section. file: of the record, relative to the folder of records. plots: links relative to the page."""
    size = model(record)
    if grown := record["grown"]:
        size += f", **grown** from {grown['from']} to {grown_to(grown)}: the same function and text, at this size"
    return [
        f"## {title(record)}",
        "",
        f"- Model: {size}",
        *circumstances(record, file),
        "",
        *_speeds(record),
        *_loops(record),
        *_against(record),
        *_batches(record),
        *_verify(record),
        *_lost(record),
        *pictured(plots, run_called(record, file)),
    ]


def _speeds(record: dict[str, Any]) -> list[str]:
    rows = [
        (row["task"], row["mode"], *(("", f"failed: {row['error']}", *[""] * 5) if "error" in row else speed(record, row)))
        for row in record["rows"]
    ]
    columns = ("task", "mode", "tokens", "tokens/s", "over plain", "decoding tokens/s", "over plain", "tau", "same text as plain")
    return table(columns, rows)


def _loops(record: dict[str, Any]) -> list[str]:
    looped = [(row["task"], row["looped_tokens"] / max(row["tokens"], 1)) for row in record["rows"] if "looped_tokens" in row]
    if not looped:
        return []
    shares = ", ".join(f"{task} {share:.0%}" for task, share in looped)
    meant = f"the last phrase, of at most {LONGEST} tokens, three times or more"
    return [f"Plain decoding's tokens that end an answer in a loop ({meant}): {shares}.", ""]


def _against(record: dict[str, Any]) -> list[str]:
    rows: list[tuple[object, ...]] = []
    for entry in record["against_peers"]:
        for kind in ("plain", "best"):
            if kind in entry or f"decode_{kind}" in entry:
                both = (*_terms(entry.get(kind)), *_terms(entry.get(f"decode_{kind}")))
                rows.append((entry["task"], entry["peer"], kind, *both))
    columns = ("task", "peer", "compared", "tokens/s: ours", "theirs", "ratio", "decoding tokens/s: ours", "theirs", "ratio")
    return table(columns, rows)


def _terms(versus: dict[str, Any] | None) -> tuple[str, str, str]:
    """Ours, theirs, each with its mode, and the ratio."""
    if versus is None:
        return "", "", ""
    ours, theirs, ratio = rates(versus)
    return f"{ours} {versus['ours']}", f"{theirs} {versus['theirs']}", ratio


def _batches(record: dict[str, Any]) -> list[str]:
    columns = ("task", "mode", "batch", "tokens/s of all", "plain tokens/s of all", "ratio", "same text as plain")
    text = "Many requests at once. A fixed number of requests is always running: when one ends, the next begins. The same few"
    text += " prompts come again and again, so `suffix` and `recycle`, which learn from other requests, gain more here. "
    turns = f"Modes take turns of {TURN_S:g} seconds."
    if all("held_tokens" in row for row in record["batches"]):
        text += "Counting starts and stops at moments with equal unfinished work, so no mode gains from the edges. " + turns
    elif all("rounds" in row for row in record["batches"]):
        # older records
        text += "Counting starts when as many requests have ended as run at once: from then on prompts are read as answers end. "
        text += "Modes take turns of a moment."
    else:
        # older records
        text += "Counting starts at the first step, with more prompts to read than answers to write, which flatters drafts. "
        text += "One mode ran after another."
    rows = batches(record)
    return [text, "", *table(columns, rows)] if rows else []


def _verify(record: dict[str, Any]) -> list[str]:
    cost, prefill, by_engine = record["verify_cost"], record["prefill"], forwards(record)
    rows = [(name, *(f"{ms} ({relative})" for ms, relative in by_rows.values())) for name, by_rows in by_engine.items()]
    first = ", ".join(f"{name} {ms:.0f} ms{_range(prefill, name)}" for name, ms in prefill["ms"].items())
    return [
        f"A forward after {cost['context_tokens']} cached tokens, ms by rows (over one row):",
        "",
        *table(("engine", *next(iter(by_engine.values()))), rows),
        *_floor(cost.get("floor")),
        f"First token after a prompt of {prefill['tokens']} tokens: {first}.",
        "",
    ]


def _range(prefill: dict[str, Any], name: str) -> str:
    """The minimum and maximum of the repeats; empty for older records."""
    ends = prefill.get("range_ms", {}).get(name)
    return f" ({ends[0]:.0f} to {ends[1]:.0f})" if ends else ""


def _floor(floor: dict[str, Any] | None) -> list[str]:
    """The time of one row relative to reading its weights; empty for older records."""
    if floor is None:
        return []
    rate = floor["bytes"] / floor["reading_ms"] / 1e6
    return [
        f"Reading the {floor['bytes'] / 1e6:.0f} MB of weights that every forward reads took {floor['reading_ms']:.2f} ms"
        f" ({rate:.1f} GB/s), one row in turns with it {floor['row_ms']:.2f} ms: {floor['ratio']:.2f} times this floor.",
        "",
    ]


def _lost(record: dict[str, Any]) -> list[str]:
    """The lost comparisons, or a sentence that there are none."""
    if rows := lost(record):
        return ["What lost:", "", *table(("in", "task", "ours", "against", "ours over theirs"), rows)]
    peers = ["the first token"] if any(row["peer"] is not None for row in record["rows"] if "error" not in row) else []
    measured = ["whole answers", "decoding", *peers, *(["batches"] if record["batches"] else [])]
    return [f"Nothing lost of what was measured: {', '.join(measured[:-1])} and {measured[-1]}.", ""]
