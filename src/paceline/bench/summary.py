"""Summary: the runs of all machines in two tables: the gains of drafts, and the comparison with peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.bench.cells import rates
from paceline.bench.files import title
from paceline.bench.markdown import anchor, table
from paceline.bench.ours import PLAIN
from paceline.bench.run_page import run_called

SHORT = "In short"


def summary(runs: dict[str, dict[str, Any]]) -> list[str]:
    """The last group of rows of every run (all tasks, if there are several). runs: by file, relative to the folder of records."""
    drafted: list[tuple[object, ...]] = []
    peers: list[tuple[object, ...]] = []
    for file, record in runs.items():
        heat = record["settings"].get("temperature", 0.0)
        name = f"[{run_called(record, file)}]({_place(record, file)}){f', at temperature {heat:g}' if heat else ''}"
        last = record["rows"][-1]["task"]
        cells = [_best(record["speedup"].get(last, {}), kind, record["settings"]["drafts"]) for kind in ("", "decode_")]
        if any(cells):
            drafted.append((name, *(cell for found in cells for cell in found or ("", "", ""))))
        ms = record["prefill"]["ms"]
        for entry in record["against_peers"]:
            if entry["task"] == last:
                first = (f"{ms[name]:.0f}" if name in ms else "" for name in (PLAIN, f"{entry['peer']} {PLAIN}"))
                peers.append((name, entry["peer"], *_terms(entry.get("best")), *_terms(entry.get("decode_best")), *first))
    columns = ("run", *("plain tokens/s", "drafted", "ratio"), *("plain decoding tokens/s", "drafted", "ratio"))
    lines = table(columns, drafted)
    if not lines:
        return []
    intro = "All tasks of a run together: plain decoding, and the draft that gained most in each of the two rates:"
    lines = [f"## {SHORT}", "", intro, "", *lines]
    columns = (
        *("run", "peer"), *("tokens/s: ours", "theirs", "ratio"), *("decoding tokens/s: ours", "theirs", "ratio"),
        *("first token after a prompt of 512 tokens, ms: ours", "theirs"),
    )  # fmt: skip
    return lines + (["The fastest mode of ours against the fastest of each peer:", "", *table(columns, peers)] if peers else [])


def _place(record: dict[str, Any], file: str) -> str:
    """The link to the heading of a run, relative to the first page."""
    folder = Path(file).parent.name
    return f"{f'benchmarks-{folder}.md' if folder else ''}#{anchor(title(record))}"


def _best(modes: dict[str, dict[str, float]], kind: str, drafts: list[str]) -> tuple[str, str, str] | None:
    """The draft with the largest gain: plain decoding's rate, its own with its name, their ratio. kind: "" or "decode_"."""
    found = {mode: terms for mode, terms in modes.items() if mode in drafts and f"{kind}ratio" in terms}
    if not found:
        return None
    mode = max(found, key=lambda mode: found[mode][f"{kind}ratio"])
    terms = found[mode]
    plain, mine = terms[f"plain_{kind}tokens_per_s"], terms[f"{kind}tokens_per_s"]
    return f"{plain:.1f}", f"{mine:.1f} {_kind(mode)}", f"{terms[f'{kind}ratio']:.2f}"


def _terms(versus: dict[str, Any] | None) -> tuple[str, str, str]:
    """Ours with the kind of its draft, theirs with its mode but without the peer's name, and the ratio."""
    if versus is None:
        return "", "", ""
    ours, theirs, ratio = rates(versus)
    return f"{ours} {_kind(versus['ours'])}", f"{theirs} {versus['theirs'].partition(' ')[2]}", ratio


def _kind(mode: str) -> str:
    """A mode in short: its draft without options, which would be too wide for a table, and its verifier and policy."""
    draft, *under = mode.split(", ")
    return ", ".join((draft.partition(":")[0], *under))
