"""Page: docs/benchmarks.md and its plots, written from the records in a folder.

python -m paceline.bench.page benchmarks docs
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from paceline.bench.circumstances import circumstances
from paceline.bench.files import records, title
from paceline.bench.gpu_page import gpu_section, plot_gpu
from paceline.bench.load.plots import plot as plot_load
from paceline.bench.load_page import load_section
from paceline.bench.loops import LONGEST
from paceline.bench.markdown import anchor, pictured, table
from paceline.bench.ours import PLAIN
from paceline.bench.plots import plot
from paceline.bench.report import same_text
from paceline.bench.step_page import step_section

_GPU = "gpu.json"


def page(
    runs: dict[str, dict[str, Any]],
    plots: dict[str, list[str]],
    loads: dict[str, dict[str, Any]] | None = None,
    steps: dict[str, Any] | None = None,
    gpu: dict[str, Any] | None = None,
) -> str:
    """The page as Markdown. runs: by file, relative to the folder of records. plots: per file, its pictures as links relative to
    the page. loads: records of `paceline bench serve`, by file. steps: what a step costs beside the model. gpu: what was measured
    on a device.
    """
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m paceline.bench.page benchmarks docs` from the records in `benchmarks/`; edit nothing here. Runs"
        " named after a folder were made on another machine than the others. The command of a run, its machine and its commit"
        " stand with it; `make bench` makes such records on yours.",
        "",
        "Every ratio was measured in one run, medians of the repeats (where their texts have other lengths the repeat in"
        " the middle), and stands beside both of its terms; modes took turns (in older runs batches did not). Newer"
        " records hold every measurement. Rates are tokens per second, greedy unless a run says otherwise, one request at"
        " a time where no batch is named. **tokens/s** is of whole answers, prompt included; **decoding** leaves out the"
        " time that plain decoding of the same engine takes to its first token, so what a draft model takes to read the prompt"
        " counts, and answers are short: read it with care. **tau** is the mean number of tokens per"
        " decoding step of the target.",
        "",
        "Peers get the same token ids, run in processes of their own that are stopped while others are measured, and compute"
        " every prompt; records that were made otherwise say so, or their memory includes that of peers. 8 bits of OpenVINO are"
        " what `optimum-cli --weight-format int8` makes, and in older runs Q8_0 read from GGUF, which is slower, as its 4 bits"
        " are still: Q4_0; compressed by NNCF they decode 1.27 times as fast. It keeps equal"
        " constants once, also the zeros that a grown model is padded with: it reads about a seventh less. llama.cpp has the"
        " draft model too in newer runs, in a loop of ours that drafts as its server did by default until 2026; before commit"
        " 2681eeb it went on behind a text that ended among drafted tokens, and was timed for it, so those rows are too"
        " slow (on the small"
        " model by a third on e2e, and to less than a third of its speed on sql). Our weights lie on large"
        " pages where the system gives them to who asks; peers do not ask.",
        "",
        "On the Xeon llama.cpp was built without AMX, since it crashes with it (ggml-org/llama.cpp#20824). With AMX one row at"
        " the beginning of a text took 8.0 ms there and without it 13 to 16, so its plain decoding would be nearer to ours.",
        "",
        "The model is the small one that comes with the package, trained on the domains that most of the prompts come from (E2E,"
        " WikiSQL, school problems, stories, code), and its draft was distilled from it: drafts come true more often here than"
        " they may elsewhere. A grown model is the same function, padded to the size of a larger one: its cost is that size's,"
        " its text and its acceptance are those of the small model. No speed was measured on a public pair of models. Greedy,"
        " it falls into loops, above all in `copy`, `story` and `code`, and drafts follow a loop to its end: read `e2e` and"
        " `sql` for what they gain on other text. Newer records say how much of a task was in loops.",
        "",
        *_summary(runs),
    ]
    for file, record in runs.items():
        lines += _run(record, file, plots.get(file, []))
    for file, record in (loads or {}).items():
        lines += load_section(record, file, plots.get(file, []))
    if steps is not None:
        lines += step_section(steps)
    if gpu is not None:
        lines += gpu_section(gpu, *plots[_GPU])
    return "\n".join(lines).rstrip() + "\n"


def _summary(runs: dict[str, dict[str, Any]]) -> list[str]:
    """The last group of rows of every run, all tasks where there are several, in two tables."""
    drafted: list[tuple[object, ...]] = []
    peers: list[tuple[object, ...]] = []
    for file, record in runs.items():
        heat = record["settings"].get("temperature", 0.0)
        name = f"[{title(record)}{_elsewhere(file)}](#{_anchor(record, file)}){f', at temperature {heat:g}' if heat else ''}"
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
    lines = ["## In short", "", told, "", *lines]
    columns = (
        *("run", "peer"), *("tokens/s: ours", "theirs", "ratio"), *("decoding tokens/s: ours", "theirs", "ratio"),
        *("first token behind 512, ms: ours", "theirs"),
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


def _anchor(record: dict[str, Any], file: str) -> str:
    """The heading of a run as GitHub links to it."""
    return anchor(f"{title(record)}{_elsewhere(file)}")


def _run(record: dict[str, Any], file: str, plots: list[str]) -> list[str]:
    model, grown = record["model"], record["grown"]
    size = f"{model['parameters'] / 1e6:.1f}M parameters, weights {model['weights']}"
    if grown:
        wide = f" of width {grown['width']}" if grown["width"] else ""
        size += f", **grown** from {grown['from']} to {grown['layers']} layers{wide}: the same function and text, at this size"
    return [
        f"## {title(record)}{_elsewhere(file)}",
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
    told = "So many requests always in flight, one that ends replaced by the next, the same few prompts over and over, by which"
    told += " `suffix` and `recycle`, who learn from other requests, gain more than they would; "
    if all("held_tokens" in row for row in record["batches"]):
        told += "counted between two moments at which as much is half written, so that as many prompts are read as answers end;"
        told += " modes in turns of a moment:"
    elif all("rounds" in row for row in record["batches"]):
        # older records
        told += "counted from when as many had ended, so that prompts are read as answers end, modes in turns of a moment:"
    else:
        # older records
        told += "counted from the first step on, with more to read than to write, which flatters drafts; one mode after another:"
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
        f"A forward behind {cost['context_tokens']} cached tokens, ms by rows (over one row):",
        "",
        *table(("engine", *counts), rows),
        *_floor(cost.get("floor")),
        f"First token behind a prompt of {prefill['tokens']}: {first}.",
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
            losing(f"first token behind {tokens}, ms", "", (PLAIN, ms[PLAIN]), (name, value), less_is_better=True)
    for row in record["batches"]:
        terms = (row["mode"], row["tokens_per_s"]), (PLAIN, row["plain_tokens_per_s"])
        losing(f"batch {row['batch']}, tokens/s of all", row["task"], *terms)
    if not lost:
        peers = ["the first token"] if any(row["peer"] is not None for row in rows) else []
        measured = ["whole answers", "decoding", *peers, *(["batches"] if record["batches"] else [])]
        return [f"Nothing lost of what was measured: {', '.join(measured[:-1])} and {measured[-1]}.", ""]
    return ["What lost:", "", *table(("in", "task", "ours", "against", "ours over theirs"), lost)]


def main(source: Path, docs: Path) -> None:
    """Write benchmarks.md and its plots, under images, in `docs`. What lies in a folder of `source` is of another machine."""
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
    text = page(runs, plots, loads, _one(source / "step_overhead.json"), gpu)
    (docs / "benchmarks.md").write_text(text, encoding="utf-8")


def _one(file: Path) -> dict[str, Any] | None:
    """A record, where there is one."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _loads(folder: Path) -> dict[Path, dict[str, Any]]:
    """Every record of `paceline bench serve` in a folder, by file."""
    found = {file: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("serve-*.json"))}
    return {file: record for file, record in found.items() if record.get("kind") == "paceline bench serve"}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
