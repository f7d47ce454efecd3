"""Lost: comparisons of a run in which this engine or a draft was slower: whole answers, decoding, first token, batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from paceline.bench.ours import PLAIN


class _Compared(NamedTuple):
    """One comparison. what: the quantity. task: "" for none. ours, other: a mode with its tokens per second or ms."""

    what: str
    task: str
    ours: tuple[str, float]
    other: tuple[str, float]

    @property
    def ratio(self) -> float:
        return self.ours[1] / self.other[1]


def lost(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """The lost comparisons: quantity, task, ours and the other, each with its mode, and their ratio."""
    behind = [pair for pair in _rates(record) if pair.ratio < 1]
    behind += [pair for pair in _first_tokens(record) if pair.ratio > 1]
    behind += [pair for pair in _batches(record) if pair.ratio < 1]
    return [
        (pair.what, pair.task, *(f"{value:.1f} {mode}" for mode, value in (pair.ours, pair.other)), f"{pair.ratio:.2f}")
        for pair in behind
    ]


def _rates(record: dict[str, Any]) -> Iterator[_Compared]:
    """Tokens per second of one request: drafts against plain decoding, then against peers."""
    drafts = record["settings"]["drafts"]
    for kind, what in (("", "whole answers, tokens/s"), ("decode_", "decoding, tokens/s")):
        for task, modes in record["speedup"].items():
            for mode, terms in modes.items():
                if mode in drafts and f"{kind}ratio" in terms:
                    mine = (mode, terms[f"{kind}tokens_per_s"])
                    yield _Compared(what, task, mine, (PLAIN, terms[f"plain_{kind}tokens_per_s"]))
        for entry in record["against_peers"]:
            for compared in ("plain", "best"):
                if (versus := entry.get(f"{kind}{compared}")) is not None:
                    ours, theirs = ((versus[side], versus[f"{side}_tokens_per_s"]) for side in ("ours", "theirs"))
                    yield _Compared(what, entry["task"], ours, theirs)


def _first_tokens(record: dict[str, Any]) -> Iterator[_Compared]:
    """Milliseconds to the first token, plain against plain: prompts of each task, then a prompt of fixed length."""
    rows = [row for row in record["rows"] if "error" not in row]
    for task in dict.fromkeys(row["task"] for row in rows):
        first = {row["mode"]: 1e3 * row["first_s"] / row["prompts"] for row in rows if row["task"] == task}
        peers = [row["mode"] for row in rows if row["task"] == task and row["peer"] is not None]
        for name in (mode for mode in peers if mode.endswith(f" {PLAIN}")):
            yield _Compared("first token, ms, mean of the prompts", task, (PLAIN, first[PLAIN]), (name, first[name]))
    ms, tokens = record["prefill"]["ms"], record["prefill"]["tokens"]
    for name, value in ms.items():
        if PLAIN in ms and name != PLAIN:
            yield _Compared(f"first token after {tokens} tokens, ms", "", (PLAIN, ms[PLAIN]), (name, value))


def _batches(record: dict[str, Any]) -> Iterator[_Compared]:
    for row in record["batches"]:
        ours, plain = (row["mode"], row["tokens_per_s"]), (PLAIN, row["plain_tokens_per_s"])
        yield _Compared(f"batch {row['batch']}, tokens/s of all", row["task"], ours, plain)
