"""Circumstances: machine, versions, command and peers of a run, as lines of the benchmark page. Older records lack some."""

from __future__ import annotations

import shlex
from typing import Any

from paceline.bench.files import threads
from paceline.bench.machines import machine_name

_TELLING = ("avx2", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")
"""Instructions that matter for products in few bits."""


def circumstances(record: dict[str, Any], file: str) -> list[str]:
    """The lines. file: of the record, relative to the folder of records."""
    machine, family = record["machine"], record["machine"].get("family")
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    kind = f" (family {family[0]}, model {family[1]})" if family and len(family) > 1 else ""
    gpu = f"{machine['gpu']}; " if "gpu" in machine else ""
    lines = [
        f"- Machine: {gpu}{machine_name(machine)}{kind}, {machine['cores']} cores, {machine['system']}; {threads(record)}",
        f"- Versions: {versions}; commit {record['commit']}; {record['date']}",
        f"- Command: `paceline {shlex.join(record['argv'])}` ([record](../benchmarks/{file}))",
        f"- Text equal to plain decoding in every drafted run{_promised(record)}: {'yes' if record['equal'] else '**no**'}",
    ]
    if "instructions" in machine:
        telling = ", ".join(name for name in _TELLING if name in machine["instructions"]) or "none of those that matter here"
        lines.append(f"- Instructions: {telling}; large pages: {machine['huge_pages'] or 'unknown'}")
    if auto := record["settings"].get("auto"):
        lines.append(f"- `auto` is `{auto}` under `adaptive`")
    if heat := record["settings"].get("temperature", 0.0):
        lines.append(f"- Sampled at temperature {heat:g}, where other runs are greedy")
    lines += [f"- {line}" for line in left_out(record)]
    if times := record.get("contended"):
        lines.append(f"- {contended(times)}")
    if text := without_core(record):
        lines.append(f"- {text}")
    if summary := together(record):
        lines.append(f"- {summary}")
    return [*lines, *(f"- {line}" for line in peers(record)), *_memory(record["memory"])]


def left_out(record: dict[str, Any]) -> list[str]:
    """Per task, a line about the prompts that were too long to be run."""
    return [
        f"{name}: {counted(task['left_out'], 'prompt')} too long for the model and left out, {task['prompts'] or 'none'} run"
        for name, task in record["tasks"].items()
        if task["left_out"]
    ]


def counted(number: int, what: str) -> str:
    """A count with its noun, such as `1 prompt` or `2 prompts`."""
    return f"{number} {what}{'s' * (number != 1)}"


def _peers_draft(record: dict[str, Any]) -> str:
    """The draft model that the peers got; empty without peers, and for older records, which lack it."""
    if not record["peers"] or "peers_draft" not in record:
        return ""
    return f"Draft model of the peers: {record['peers_draft'] or 'none was given to them'}"


def contended(times: int) -> str:
    """A note that other work kept threads from their cores this often, and what that means for the numbers."""
    often = "Once" if times == 1 else f"{times} times"
    return f"{often} other work kept threads from their cores, and what followed ran on fewer: a quiet machine is faster"


def without_core(record: dict[str, Any]) -> str:
    """A note that other work had the core for a large part of the time; empty if the part was small or is unknown."""
    lost = record.get("lost") or 0.0
    return f"Other work had the core for {lost:.0%} of the time: a quiet machine is faster" if lost >= _MUCH else ""


_MUCH = 0.03
"""Share of a run's time; gains differ from run to run by more than this anyway."""


def together(record: dict[str, Any]) -> str:
    """How many cores' work the threads did, over all measurements in the run; empty if it was not measured."""
    found = record.get("together")
    if not found:
        return ""
    cores, meeting = sorted(found["cores"]), sorted(found["meeting_us"])
    return (
        f"{found.get('threads', record['threads'])} threads multiplied like {_from_to(cores)} cores,"
        f" and met in {_from_to(meeting)} us (least to most over the run)"
        f"{': some of them had to share a core' if on_fewer_cores(record) else ''}"
    )


def on_fewer_cores(record: dict[str, Any]) -> bool:
    """Whether threads had clearly less than a core each, in any of these measurements."""
    found = record.get("together")
    return bool(found) and min(found["cores"]) < _ENOUGH * found.get("threads", record["threads"])


_ENOUGH = 0.75
"""Two threads of one core do 1.1 to 1.3 times its work."""


def _from_to(ordered: list[float]) -> str:
    low, high = f"{ordered[0]:.2f}", f"{ordered[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


def _promised(record: dict[str, Any]) -> str:
    return " that promises it" if any(row.get("keeps", "text") != "text" for row in record["rows"]) else ""


def peers(record: dict[str, Any]) -> list[str]:
    """Lines about the peers: versions, formats and options, what failed, and which are not installed."""
    lines = [
        f"Peer: {name} {one['version']}, weights {one['weights']}{_peer_options(one)}" for name, one in record["peers"].items()
    ]
    if record["peers"] and record["threads"] > 1 and not all(one.get("stopped_between") for one in record["peers"].values()):
        lines.append(
            "Threads of peers could still spin while others were measured: they were not stopped between their turns then"
        )
    if summary := _peers_draft(record):
        lines.append(summary)
    lines += [f"{name} failed: {why}" for name, why in record["failed"].items()]
    absent = record["not_installed"]
    return lines + ([f"Not installed, so not run: {', '.join(absent)}"] if absent else [])


def _peer_options(peer: dict[str, Any]) -> str:
    return "".join(f"; {name}: {value}" for name, value in peer.get("options", {}).items())


def _memory(memory: dict[str, Any]) -> list[str]:
    if memory["peak_resident_bytes"] is None:
        return []
    # older records have the memory of the benchmark's own process
    whole = " of one answer" if memory.get("of_one_answer") else " of the benchmark"
    parts = [memory[name] / 1e6 for name in ("peak_resident_bytes", "weights_bytes", "kv_bytes")]
    return [f"- Peak resident memory {parts[0]:.0f} MB{whole}; weights {parts[1]:.0f} MB, keys and values {parts[2]:.0f} MB"]
