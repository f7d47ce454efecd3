"""Page: docs/benchmarks.md and its plots, written from the records in a folder.

python -m paceline.bench.page benchmarks docs
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from paceline.bench.files import records, threads, title
from paceline.bench.ours import PLAIN
from paceline.bench.plots import plot


def page(runs: dict[str, dict[str, Any]], plots: dict[str, list[str]]) -> str:
    """The page as Markdown. runs: by file, relative to the folder of records. plots: per file, its pictures as links relative to
    the page.
    """
    lines = [
        "# Benchmarks",
        "",
        "Generated from `benchmarks/*.json` by `make bench`; edit nothing here. Every ratio was measured in one run, modes"
        " taking turns, medians of the repeats, and stands beside both of its terms. Peers run in processes of their own,"
        " except in records whose memory includes them. Rates are tokens per second, greedy, one request at a time; decoding"
        " leaves out the time until the first token. Runs named after a folder are of another machine.",
        "",
    ]
    for file, record in runs.items():
        lines += _run(record, file, plots.get(file, []))
    return "\n".join(lines).rstrip() + "\n"


def _run(record: dict[str, Any], file: str, plots: list[str]) -> list[str]:
    model, grown, machine = record["model"], record["grown"], record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    size = f"{model['parameters'] / 1e6:.1f}M parameters, weights {model['weights']}"
    if grown:
        wide = f" of width {grown['width']}" if grown["width"] else ""
        size += f", **grown** from {grown['from']} to {grown['layers']} layers{wide}: the same function and text, at this size"
    return [
        f"## {title(record)}{_elsewhere(file)}",
        "",
        f"- Model: {model['name']}, {size}",
        f"- Machine: {machine['processor']}, {machine['cores']} cores, {machine['system']}; {threads(record)}",
        f"- Versions: {versions}; commit {record['commit']}; {record['date']}",
        f"- Command: `paceline {shlex.join(record['argv'])}` ([record](../benchmarks/{file}))",
        f"- Text equal to plain decoding in every drafted run: {'yes' if record['equal'] else '**no**'}",
        *_peers(record),
        *_memory(record["memory"]),
        "",
        *_speeds(record),
        *_against(record),
        *_batches(record),
        *_verify(record),
        *_lost(record),
        *(line for link in plots for line in (f"![{Path(link).stem}]({link})", "")),
    ]


def _elsewhere(file: str) -> str:
    folder = Path(file).parent.name
    return f", {folder}" if folder else ""


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    return [_row(*columns), _row(*["---"] * len(columns)), *(_row(*row) for row in rows), ""] if rows else []


def _rate(value: float | None, form: str = ".1f") -> str:
    return "" if value is None else format(value, form)


def _peers(record: dict[str, Any]) -> list[str]:
    lines = [f"- Peer: {name} {one['version']}, weights {one['weights']}" for name, one in record["peers"].items()]
    lines += [f"- {name} failed: {why}" for name, why in record["failed"].items()]
    absent = record["not_installed"]
    return lines + ([f"- Not installed, so not run: {', '.join(absent)}"] if absent else [])


def _memory(memory: dict[str, Any]) -> list[str]:
    if memory["peak_resident_bytes"] is None:
        return []
    # older records are of the benchmark's own process, the oldest of its peers too
    whole = (
        " of one answer"
        if memory.get("of_one_answer")
        else ", peers included"
        if memory.get("holds_peers")
        else " of the benchmark"
    )
    parts = [memory[name] / 1e6 for name in ("peak_resident_bytes", "weights_bytes", "kv_bytes")]
    return [f"- Peak resident memory {parts[0]:.0f} MB{whole}; weights {parts[1]:.0f} MB, keys and values {parts[2]:.0f} MB"]


def _speeds(record: dict[str, Any]) -> list[str]:
    rows = []
    for row in record["rows"]:
        gain = record["speedup"].get(row["task"], {}).get(row["mode"], {})
        if "error" in row:
            rows.append((row["task"], row["mode"], "", f"failed: {row['error']}", "", "", "", "", ""))
            continue
        same = "" if row["mode"] == PLAIN else f"{row['equal_prompts']} of {row['prompts']}"
        rows.append(
            (
                row["task"], row["mode"], row["tokens"], _rate(row["tokens_per_s"]), _rate(gain.get("ratio"), ".2f"),
                _rate(row["decode_tokens_per_s"]), _rate(gain.get("decode_ratio"), ".2f"), _rate(row.get("tau"), ".2f"), same,
            )
        )  # fmt: skip
    columns = ("task", "mode", "tokens", "tokens/s", "over plain", "decoding tokens/s", "over plain", "tau", "same text as plain")
    return _table(columns, rows)


def _against(record: dict[str, Any]) -> list[str]:
    rows: list[tuple[object, ...]] = []
    for entry in record["against_peers"]:
        for kind in ("decode_plain", "decode_best"):
            if (versus := entry.get(kind)) is not None:
                rates = (_rate(versus["ours_tokens_per_s"]), versus["theirs"], _rate(versus["theirs_tokens_per_s"]))
                rows.append((entry["task"], kind.removeprefix("decode_"), versus["ours"], *rates, f"{versus['ratio']:.2f}"))
    return _table(("task", "compared", "ours", "decoding tokens/s", "theirs", "decoding tokens/s", "ratio"), rows)


def _batches(record: dict[str, Any]) -> list[str]:
    rows: list[tuple[object, ...]] = [
        (
            row["task"], row["mode"], row["batch"], _rate(row["tokens_per_s"]), _rate(row["plain_tokens_per_s"]),
            f"{row['ratio']:.2f}", f"{row['equal_prompts']} of {row['prompts']}",
        )
        for row in record["batches"]
        if row["mode"] != PLAIN
    ]  # fmt: skip
    table = _table(("task", "mode", "batch", "tokens/s of all", "plain tokens/s of all", "ratio", "same text as plain"), rows)
    return ["So many requests always in flight, one that ends replaced by the next:", "", *table] if rows else []


def _verify(record: dict[str, Any]) -> list[str]:
    cost, prefill = record["verify_cost"], record["prefill"]
    counts = list(next(iter(cost["ms"].values())))
    rows: list[tuple[object, ...]] = [
        (name, *(f"{ms:.2f} ({cost['relative'][name][n]:.2f})" for n, ms in by_rows.items()))
        for name, by_rows in cost["ms"].items()
    ]
    first = ", ".join(f"{name} {ms:.0f} ms" for name, ms in prefill["ms"].items())
    return [
        f"A forward behind {cost['context_tokens']} cached tokens, ms by rows (over one row):",
        "",
        *_table(("engine", *counts), rows),
        f"First token behind a prompt of {prefill['tokens']}: {first}.",
        "",
    ]


def _lost(record: dict[str, Any]) -> list[str]:
    """What was slower than what it is compared with, said in so many words."""
    lost = [
        f"{mode} in {task}: {terms['tokens_per_s']:.1f} against {terms['plain_tokens_per_s']:.1f} tokens/s of plain decoding"
        for task, modes in record["speedup"].items()
        for mode, terms in modes.items()
        if terms["ratio"] < 1 and mode in record["settings"]["drafts"]
    ]
    lost += [
        f"{versus['ours']} in {entry['task']}: {versus['ours_tokens_per_s']:.1f} against {versus['theirs_tokens_per_s']:.1f}"
        f" decoding tokens/s of {versus['theirs']}"
        for entry in record["against_peers"]
        for versus in (entry.get("decode_plain"), entry.get("decode_best"))
        if versus is not None and versus["ratio"] < 1
    ]
    lost += [
        f"{row['mode']} in {row['task']}, batch {row['batch']}: {row['tokens_per_s']:.1f} against"
        f" {row['plain_tokens_per_s']:.1f} tokens/s of plain decoding"
        for row in record["batches"]
        if row["ratio"] < 1
    ]
    return ["What lost:", "", *(f"- {line}" for line in lost), ""] if lost else ["Nothing lost.", ""]


def main(source: Path, docs: Path) -> None:
    """Write benchmarks.md and its plots, under images, in `docs`. What lies in a folder of `source` is of another machine."""
    runs = {str(file.relative_to(source)): record for file, record in records(source).items()}
    plots = {}
    for file, record in runs.items():
        place = (docs / "images" / file).with_suffix("")
        place.parent.mkdir(parents=True, exist_ok=True)
        plots[file] = [os.path.relpath(png, docs) for png in plot(record, place)]
    (docs / "benchmarks.md").write_text(page(runs, plots), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
