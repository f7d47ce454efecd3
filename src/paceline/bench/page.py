"""Page: docs/benchmarks.md, a page beside it for each other machine, and their plots, written from the records in a folder.

python -m paceline.bench.page benchmarks docs
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from paceline.bench.batches import TURN_S
from paceline.bench.circumstances import circumstances
from paceline.bench.files import records, title
from paceline.bench.gpu_page import GPU_TITLE, gpu_section, plot_gpu
from paceline.bench.load.plots import plot as plot_load
from paceline.bench.load_page import load_section, load_title
from paceline.bench.loops import LONGEST
from paceline.bench.machines import machine_name
from paceline.bench.markdown import anchor, pictured, table
from paceline.bench.ours import PLAIN
from paceline.bench.page_words import FIGURES, MEANING, PICTURES, READING
from paceline.bench.plots import plot
from paceline.bench.report import same_text
from paceline.bench.step_page import STEP_TITLE, step_section

_GPU = "gpu.json"
_MAIN, _GPU_PAGE = "benchmarks.md", "benchmarks-gpu.md"
_SHORT = "In short"


def pages(
    runs: dict[str, dict[str, Any]],
    plots: dict[str, list[str]],
    loads: dict[str, dict[str, Any]] | None = None,
    steps: dict[str, Any] | None = None,
    gpu: dict[str, Any] | None = None,
) -> dict[str, str]:
    """The pages as Markdown, by file name. runs: by file, relative to the folder of records. plots: per file, its pictures as
    links relative to the page. loads: records of `paceline bench serve`, by file. steps: what a step costs beside the model.
    gpu: what was measured on a device.
    """
    machines = _by_folder(runs)
    here = machines.pop("", {})
    loaded = {load_title(record): load_section(record, file, plots.get(file, [])) for file, record in (loads or {}).items()}
    others = {f"benchmarks-{folder}.md": (folder, found) for folder, found in machines.items()}
    contents = [f"- [{told}](#{anchor(told)})" for told in (PICTURES, MEANING, *([_SHORT] if runs else []))]
    contents += [f"- Runs on this page, {_machine(here)}:", *_links(here)] if here else []
    contents += [f"- [{told}](#{anchor(told)})" for told in (*loaded, *([STEP_TITLE] if steps is not None else []))]
    for name, (folder, found) in others.items():
        contents.append(f"- [Runs on {_machine(found)}]({name}), from `benchmarks/{folder}`: {len(found)}")
    contents += [f"- [{GPU_TITLE}]({_GPU_PAGE})"] if gpu is not None else []
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m paceline.bench.page benchmarks docs` from the records in `benchmarks/`; edit nothing here."
        " Each run stands with its command, its machine and its commit. `make bench` makes such records on your machine.",
        "",
        *contents,
        "",
        READING,
        FIGURES,
        *_summary(runs),
    ]
    for file, record in here.items():
        lines += _run(record, file, plots.get(file, []))
    for section in loaded.values():
        lines += section
    if steps is not None:
        lines += step_section(steps)
    found = {_MAIN: lines}
    for name, (folder, theirs) in others.items():
        found[name] = [
            f"# Benchmarks: {_machine(theirs)}",
            "",
            f"The runs of `benchmarks/{folder}`. [{_MAIN}]({_MAIN}) says how to read them, and compares them with others.",
            "",
            *_links(theirs, ""),
            "",
            *(line for file, record in theirs.items() for line in _run(record, file, plots.get(file, []))),
        ]
    if gpu is not None:
        found[_GPU_PAGE] = [f"# Benchmarks: {GPU_TITLE[0].lower()}{GPU_TITLE[1:]}", "", *gpu_section(gpu, *plots[_GPU])]
    return {name: "\n".join(content).rstrip() + "\n" for name, content in found.items()}


def _by_folder(runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Folder, "" for none -> file -> record."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for file, record in runs.items():
        found.setdefault(Path(file).parent.name, {})[file] = record
    return found


def _machine(runs: dict[str, dict[str, Any]]) -> str:
    return machine_name(next(iter(runs.values()))["machine"])


def _links(runs: dict[str, dict[str, Any]], indent: str = "  ") -> list[str]:
    return [f"{indent}- [{title(record)}](#{anchor(title(record))})" for record in runs.values()]


def _summary(runs: dict[str, dict[str, Any]]) -> list[str]:
    """The last group of rows of every run, all tasks where there are several, in two tables."""
    drafted: list[tuple[object, ...]] = []
    peers: list[tuple[object, ...]] = []
    for file, record in runs.items():
        heat = record["settings"].get("temperature", 0.0)
        name = f"[{title(record)}{_elsewhere(file)}]({_place(record, file)}){f', at temperature {heat:g}' if heat else ''}"
        last = record["rows"][-1]["task"]
        cells = [_best(record["speedup"].get(last, {}), kind, record["settings"]["drafts"]) for kind in ("", "decode_")]
        if any(cells):
            drafted.append((name, *(cell for found in cells for cell in found or ("", "", ""))))
        ms = record["prefill"]["ms"]
        for entry in record["against_peers"]:
            if entry["task"] == last:
                first = (f"{ms[name]:.0f}" if name in ms else "" for name in (PLAIN, f"{entry['peer']} {PLAIN}"))
                terms = (*_terms(entry.get("best"), short=True), *_terms(entry.get("decode_best"), short=True))
                peers.append((name, entry["peer"], *terms, *first))
    columns = ("run", *("plain tokens/s", "drafted", "ratio"), *("plain decoding tokens/s", "drafted", "ratio"))
    lines = table(columns, drafted)
    if not lines:
        return []
    told = "All tasks of a run together: plain decoding, and the draft that gained most in each of the two rates:"
    lines = [f"## {_SHORT}", "", told, "", *lines]
    columns = (
        *("run", "peer"), *("tokens/s: ours", "theirs", "ratio"), *("decoding tokens/s: ours", "theirs", "ratio"),
        *("first token after a prompt of 512 tokens, ms: ours", "theirs"),
    )  # fmt: skip
    return lines + (["The fastest mode of ours against the fastest of each peer:", "", *table(columns, peers)] if peers else [])


def _best(modes: dict[str, dict[str, float]], kind: str, drafts: list[str]) -> tuple[str, str, str] | None:
    """The draft that gained most: plain decoding's rate, its own with its name, their ratio. kind: "" or "decode_"."""
    found = {mode: terms for mode, terms in modes.items() if mode in drafts and f"{kind}ratio" in terms}
    if not found:
        return None
    mode = max(found, key=lambda mode: found[mode][f"{kind}ratio"])
    terms = found[mode]
    plain, mine = terms[f"plain_{kind}tokens_per_s"], terms[f"{kind}tokens_per_s"]
    return f"{plain:.1f}", f"{mine:.1f} {_kind(mode)}", f"{terms[f'{kind}ratio']:.2f}"


def _terms(versus: dict[str, Any] | None, short: bool = False) -> tuple[str, str, str]:
    """Ours, theirs, each with its mode, and the ratio. short: a draft is named by its kind, a peer's mode without the peer."""
    if versus is None:
        return "", "", ""
    ours, theirs = versus["ours"], versus["theirs"]
    if short:
        ours, theirs = _kind(ours), theirs.partition(" ")[2]
    terms = f"{versus['ours_tokens_per_s']:.1f} {ours}", f"{versus['theirs_tokens_per_s']:.1f} {theirs}"
    return *terms, f"{versus['ratio']:.2f}"


def _kind(mode: str) -> str:
    """A draft by its first word, where all of its arguments would fill a table, and the rule and policy that it is run under."""
    draft, *under = mode.split(", ")
    return ", ".join((draft.partition(":")[0], *under))


def _place(record: dict[str, Any], file: str) -> str:
    """The heading of a run as the first page links to it."""
    folder = Path(file).parent.name
    return f"{f'benchmarks-{folder}.md' if folder else ''}#{anchor(title(record))}"


def _run(record: dict[str, Any], file: str, plots: list[str]) -> list[str]:
    model, grown = record["model"], record["grown"]
    size = f"{model['parameters'] / 1e6:.1f}M parameters, weights {model['weights']}"
    if grown:
        wide = f" of width {grown['width']}" if grown["width"] else ""
        size += f", **grown** from {grown['from']} to {grown['layers']} layers{wide}: the same function and text, at this size"
    return [
        f"## {title(record)}",
        "",
        f"- Model: {model['name']}, {size}",
        *circumstances(record, file),
        "",
        *_speeds(record),
        *_loops(record),
        *_against(record),
        *_batches(record),
        *_verify(record),
        *_lost(record),
        *pictured(plots, f"{title(record)}{_elsewhere(file)}"),
    ]


def _elsewhere(file: str) -> str:
    folder = Path(file).parent.name
    return f", {folder}" if folder else ""


def _rate(value: float | None, form: str = ".1f") -> str:
    return "" if value is None else format(value, form)


def _speeds(record: dict[str, Any]) -> list[str]:
    rows = []
    for row in record["rows"]:
        gain = record["speedup"].get(row["task"], {}).get(row["mode"], {})
        if "error" in row:
            rows.append((row["task"], row["mode"], "", f"failed: {row['error']}", "", "", "", "", ""))
            continue
        rows.append(
            (
                row["task"], row["mode"], row["tokens"], _rate(row["tokens_per_s"]), _rate(gain.get("ratio"), ".2f"),
                _rate(row["decode_tokens_per_s"]), _rate(gain.get("decode_ratio"), ".2f"), _rate(row.get("tau"), ".2f"),
                same_text(row),
            )
        )  # fmt: skip
    columns = ("task", "mode", "tokens", "tokens/s", "over plain", "decoding tokens/s", "over plain", "tau", "same text as plain")
    return table(columns, rows)


def _loops(record: dict[str, Any]) -> list[str]:
    told = [(row["task"], row["looped_tokens"] / max(row["tokens"], 1)) for row in record["rows"] if "looped_tokens" in row]
    if not told:
        return []
    shares = ", ".join(f"{task} {share:.0%}" for task, share in told)
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


def _batches(record: dict[str, Any]) -> list[str]:
    rows: list[tuple[object, ...]] = [
        (
            row["task"], row["mode"], row["batch"], _rate(row["tokens_per_s"]), _rate(row["plain_tokens_per_s"]),
            f"{row['ratio']:.2f}", same_text(row),
        )
        for row in record["batches"]
        if row["mode"] != PLAIN
    ]  # fmt: skip
    columns = ("task", "mode", "batch", "tokens/s of all", "plain tokens/s of all", "ratio", "same text as plain")
    told = "Many requests at once. A fixed number of requests is always running: when one ends, the next begins. The same few"
    told += " prompts come again and again, so `suffix` and `recycle`, which learn from other requests, gain more here. "
    turns = f"Modes take turns of {TURN_S:g} seconds."
    if all("held_tokens" in row for row in record["batches"]):
        told += "Counting starts and stops at moments with equal unfinished work, so no mode gains from the edges. " + turns
    elif all("rounds" in row for row in record["batches"]):
        # older records
        told += "Counting starts when as many requests have ended as run at once: from then on prompts are read as answers end. "
        told += "Modes take turns of a moment."
    else:
        # older records
        told += "Counting starts at the first step, with more prompts to read than answers to write, which flatters drafts. "
        told += "One mode ran after another."
    return [told, "", *table(columns, rows)] if rows else []


def _verify(record: dict[str, Any]) -> list[str]:
    cost, prefill = record["verify_cost"], record["prefill"]
    counts = list(next(iter(cost["ms"].values())))
    rows: list[tuple[object, ...]] = [
        (name, *(f"{ms:.2f} ({cost['relative'][name][n]:.2f})" for n, ms in by_rows.items()))
        for name, by_rows in cost["ms"].items()
    ]
    first = ", ".join(f"{name} {ms:.0f} ms{_range(prefill, name)}" for name, ms in prefill["ms"].items())
    return [
        f"A forward after {cost['context_tokens']} cached tokens, ms by rows (over one row):",
        "",
        *table(("engine", *counts), rows),
        *_floor(cost.get("floor")),
        f"First token after a prompt of {prefill['tokens']} tokens: {first}.",
        "",
    ]


def _range(prefill: dict[str, Any], name: str) -> str:
    """The least and the most of the repeats; older records do not know."""
    ends = prefill.get("range_ms", {}).get(name)
    return f" ({ends[0]:.0f} to {ends[1]:.0f})" if ends else ""


def _floor(floor: dict[str, Any] | None) -> list[str]:
    """How near one row comes to reading its weights; older records do not know."""
    if floor is None:
        return []
    rate = floor["bytes"] / floor["reading_ms"] / 1e6
    return [
        f"Reading the {floor['bytes'] / 1e6:.0f} MB of weights that every forward reads took {floor['reading_ms']:.2f} ms"
        f" ({rate:.1f} GB/s), one row in turns with it {floor['row_ms']:.2f} ms: {floor['ratio']:.2f} times this floor.",
        "",
    ]


def _lost(record: dict[str, Any]) -> list[str]:
    """What was slower than what it is compared with, said in so many words: whole answers, decoding, the first token, batches."""
    drafts, rows = record["settings"]["drafts"], [row for row in record["rows"] if "error" not in row]
    lost: list[tuple[object, ...]] = []

    def losing(what: str, task: str, mine: tuple[str, float], theirs: tuple[str, float], less_is_better: bool = False) -> None:
        lead = theirs[1] / mine[1] if less_is_better else mine[1] / theirs[1]
        if lead < 1:
            terms = (f"{value:.1f} {name}" for name, value in (mine, theirs))
            lost.append((what, task, *terms, f"{mine[1] / theirs[1]:.2f}"))

    for kind, what in (("", "whole answers, tokens/s"), ("decode_", "decoding, tokens/s")):
        for task, modes in record["speedup"].items():
            for mode, terms in modes.items():
                if mode in drafts and f"{kind}ratio" in terms:
                    mine = (mode, terms[f"{kind}tokens_per_s"])
                    losing(what, task, mine, (PLAIN, terms[f"plain_{kind}tokens_per_s"]))
        for entry in record["against_peers"]:
            for compared in ("plain", "best"):
                if (versus := entry.get(f"{kind}{compared}")) is not None:
                    ours, theirs = ((versus[side], versus[f"{side}_tokens_per_s"]) for side in ("ours", "theirs"))
                    losing(what, entry["task"], ours, theirs)
    for task in dict.fromkeys(row["task"] for row in rows):
        first = {row["mode"]: 1e3 * row["first_s"] / row["prompts"] for row in rows if row["task"] == task}
        peers = [row["mode"] for row in rows if row["task"] == task and row["peer"] is not None]
        for name in (mode for mode in peers if mode.endswith(f" {PLAIN}")):
            losing("first token, ms, mean of the prompts", task, (PLAIN, first[PLAIN]), (name, first[name]), less_is_better=True)
    ms, tokens = record["prefill"]["ms"], record["prefill"]["tokens"]
    for name, value in ms.items():
        if PLAIN in ms and name != PLAIN:
            losing(f"first token after {tokens} tokens, ms", "", (PLAIN, ms[PLAIN]), (name, value), less_is_better=True)
    for row in record["batches"]:
        terms = (row["mode"], row["tokens_per_s"]), (PLAIN, row["plain_tokens_per_s"])
        losing(f"batch {row['batch']}, tokens/s of all", row["task"], *terms)
    if not lost:
        peers = ["the first token"] if any(row["peer"] is not None for row in rows) else []
        measured = ["whole answers", "decoding", *peers, *(["batches"] if record["batches"] else [])]
        return [f"Nothing lost of what was measured: {', '.join(measured[:-1])} and {measured[-1]}.", ""]
    return ["What lost:", "", *table(("in", "task", "ours", "against", "ours over theirs"), lost)]


def main(source: Path, docs: Path) -> None:
    """Write the pages and their plots, under images, in `docs`. What lies in a folder of `source` is of another machine."""
    runs = {str(file.relative_to(source)): record for file, record in records(source).items()}
    plots = {}
    for file, record in runs.items():
        place = (docs / "images" / file).with_suffix("")
        place.parent.mkdir(parents=True, exist_ok=True)
        plots[file] = [os.path.relpath(png, docs) for png in plot(record, place)]
    loads = {str(file.relative_to(source)): record for file, record in _loads(source).items()}
    for file, record in loads.items():
        plots[file] = [os.path.relpath(png, docs) for png in plot_load(record, (docs / "images" / file).with_suffix(""))]
    gpu = _one(source / _GPU)
    if gpu is not None:
        plots[_GPU] = [os.path.relpath(plot_gpu(gpu, docs / "images" / "gpu"), docs)]
    # the plots of what a step costs beside the model are made with its record
    for name, text in pages(runs, plots, loads, _one(source / "step_overhead.json"), gpu).items():
        (docs / name).write_text(text, encoding="utf-8")


def _one(file: Path) -> dict[str, Any] | None:
    """A record, where there is one."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _loads(folder: Path) -> dict[Path, dict[str, Any]]:
    """Every record of `paceline bench serve` in a folder, by file."""
    found = {file: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("serve-*.json"))}
    return {file: record for file, record in found.items() if record.get("kind") == "paceline bench serve"}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
