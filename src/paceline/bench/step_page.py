"""Step page: the results of `benchmarks/step_overhead.py`, as a section of the benchmark page."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

from paceline.bench.files import threads
from paceline.bench.machines import machine_name
from paceline.bench.markdown import table

STEP_TITLE = "A step beside the model"
_PARTS = ("draft", "stage", "verify", "commit", "other", "total")


def step_section(record: dict[str, Any]) -> list[str]:
    """The lines of the section."""
    steps: Many[dict[str, Any]] = record["steps"]
    rows: list[tuple[object, ...]] = [
        (
            row["drafter"], row["vocabulary"], row["batch"], "greedy" if row["temperature"] == 0 else "sampled",
            *(f"{row[part]:.0f}" for part in _PARTS), f"{row['total'] / row['batch']:.0f}",
        )
        for row in steps
    ]  # fmt: skip
    look_ups = {name: [row for row in record["look_ups"] if row["drafter"] == name] for name in _names(record["look_ups"])}
    lengths = [row["text_tokens"] for row in next(iter(look_ups.values()))]
    found: list[tuple[object, ...]] = [(name, *(f"{row['propose_us']:.0f}" for row in mine)) for name, mine in look_ups.items()]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return [
        f"## {STEP_TITLE}",
        "",
        f"- Machine: {machine_name(record['machine'])}, {threads(record)}; {versions}; commit {record['commit']}",
        "- Command: `python benchmarks/step_overhead.py` ([record](../benchmarks/step_overhead.json))",
        "",
        "The real engine on a target that answers at once, microseconds per step, medians of the quietest turn. What the"
        " vocabulary needs is the difference between vocabularies. Beside a real model all of it takes longer, as the model's"
        " weights push everything else out of the caches.",
        "",
        *table(("drafter", "vocabulary", "requests", "sampling", *_PARTS, "total per request"), rows),
        "![where the time of a step beside the model goes](images/step_overhead.png)",
        "",
        "Microseconds of one lookup after four new tokens, by the length of the text that it looks in; the datastore's is of"
        " the text written beside it:",
        "",
        *table(("drafter", *map(str, lengths)), found),
        "![microseconds of a lookup by the length of the text](images/look_ups.png)",
        "",
    ]


def _names(rows: Many[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["drafter"] for row in rows))
