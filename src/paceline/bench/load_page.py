"""Load page: the results of `paceline bench serve`, as a section of the benchmark page."""

from __future__ import annotations

import json
import shlex
from typing import Any

from paceline.bench.load.failures import failures
from paceline.bench.load.plots import body_label
from paceline.bench.machines import machine_name
from paceline.bench.markdown import pictured, table


def _started(server: dict[str, Any] | None) -> str:
    """How a server was started, as far as it reported."""
    if not server:
        return "How the server was started, and so its `--batch`, the record does not say"
    drafting = "+".join(server.get("default", ())) or "nobody"
    return (
        f"The server: {server.get('target')}, {drafting} drafting, {server.get('verifier')} verifying, {server.get('policy')}"
        f" deciding, up to {server.get('batch')} requests at once"
    )


def load_title(record: dict[str, Any]) -> str:
    """The heading of the section."""
    return f"The server under load: {record['server']['model']}"


def load_section(record: dict[str, Any], file: str, plots: list[str]) -> list[str]:
    """The lines of the section about a server under load."""
    settings, machine, server = record["settings"], record["machine"], record["server"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    rows: list[tuple[object, ...]] = []
    for level in record["levels"]:
        for name, found in level["bodies"].items():
            ms = (
                " / ".join(f"{1e3 * found[measure][at]:.1f}" for at in ("mean", "p50", "p99")) if found[measure] else ""
                for measure in ("ttft_s", "tpot_s", "e2e_s")
            )
            rate, mean = f"{found['tokens_per_s']:.1f}", found.get("tau")
            rows.append(
                (
                    f"{level['load']['value']:g}",
                    body_label(name, record),
                    rate,
                    f"{found['answered']}/{found['sent']}",
                    found["chunks"],
                    "" if mean is None else f"{mean:.2f}",
                    *ms,
                )
            )
    lines = [
        f"## {load_title(record)}",
        "",
        f"- Machine: {machine_name(machine)}, {machine['cores']} cores, {machine['system']}; the server at {server['url']}",
        f"- Versions: {versions}; commit {record['commit']}; {record['date']}",
        f"- Command: `{shlex.join(record['argv'])}` ([record](../benchmarks/{file})). {_started(server.get('speculation'))}",
        f"- {settings['requests']} requests of each body and load, made from {settings['distinct_prompts']} distinct prompts of"
        f" {', '.join(settings['tasks'])}; answers of up to {settings['max_tokens']} tokens",
        f"- {body_label('body', record)}: `{json.dumps(settings['body'])}` added to every request",
    ]
    if settings["against"] is not None:
        equal = [level["against"]["equal_texts"] for level in record["levels"] if level["against"] is not None]
        same = f"{sum(one['equal'] for one in equal)} of {sum(one['of'] for one in equal)}"
        against = f"{body_label('against', record)}, in turns with it: `{json.dumps(settings['against'])}`"
        lines += [f"- {against}; the same text in {same} pairs"]
    columns = (
        record["levels"][0]["load"]["kind"], "body", "tokens/s", "answered", "chunks sent", "tau",
        "ms to first token: mean / p50 / p99", "ms per output token after it", "ms of a whole answer",
    )  # fmt: skip
    lines += ["", *table(columns, rows)]
    if unanswered := [f"- {load}, {body_label(name, record)}: {what}" for load, name, what in failures(record)]:
        lines += ["Requests that were not answered:", "", *unanswered, ""]
    lines += [
        "A chunk is one event of the stream, which the server writes and the load reads: a step that accepts drafts sends several"
        " tokens in one. So what is compared here is the engine and the cost of HTTP together, of which drafts save a part. The"
        " batches of the runs are of the engine alone, so drafts have less to save there.",
        "",
    ]
    return lines + pictured(plots, f"the server under load, {server['model']}")
