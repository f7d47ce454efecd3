"""Cells: the contents of a run's record as text, for the tables of both the benchmark page and the terminal."""

from __future__ import annotations

from typing import Any

from paceline.bench.ours import PLAIN
from paceline.bench.report import same_text


def number(value: float | None, form: str = ".1f") -> str:
    """A number as text; empty for None."""
    return "" if value is None else format(value, form)


def model(record: dict[str, Any]) -> str:
    """The model of a run with its size."""
    of = record["model"]
    return f"{of['name']}, {of['parameters'] / 1e6:.1f}M parameters, weights {of['weights']}"


def grown_to(grown: dict[str, Any]) -> str:
    """The size to which a model was grown, in words."""
    return f"{grown['layers']} layers" + (f" of width {grown['width']}" if grown["width"] else "")


def speed(record: dict[str, Any], row: dict[str, Any]) -> tuple[str, ...]:
    """A row that did not fail: tokens, tokens per second and their ratio to plain decoding's, the same two for decoding alone,
    tau, and how many texts equal plain decoding's."""
    gain = record["speedup"].get(row["task"], {}).get(row["mode"], {})
    return (
        str(row["tokens"]), number(row["tokens_per_s"]), number(gain.get("ratio"), ".2f"), number(row["decode_tokens_per_s"]),
        number(gain.get("decode_ratio"), ".2f"), number(row.get("tau"), ".2f"), same_text(row),
    )  # fmt: skip


def batches(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Drafts with many requests at once: task, mode, batch, tokens per second, plain decoding's, their ratio, equal texts."""
    return [
        (
            row["task"], row["mode"], str(row["batch"]), number(row["tokens_per_s"]), number(row["plain_tokens_per_s"]),
            number(row["ratio"], ".2f"), same_text(row),
        )
        for row in record["batches"]
        if row["mode"] != PLAIN
    ]  # fmt: skip


def rates(versus: dict[str, Any]) -> tuple[str, str, str]:
    """Tokens per second of this engine and of the peer, and their ratio."""
    return number(versus["ours_tokens_per_s"]), number(versus["theirs_tokens_per_s"]), number(versus["ratio"], ".2f")


def forwards(record: dict[str, Any]) -> dict[str, dict[str, tuple[str, str]]]:
    """Engine -> rows of a forward pass -> its milliseconds, and their ratio to those of one row."""
    cost = record["verify_cost"]
    return {
        name: {str(rows): (number(ms, ".2f"), number(cost["relative"][name][rows], ".2f")) for rows, ms in by_rows.items()}
        for name, by_rows in cost["ms"].items()
    }
