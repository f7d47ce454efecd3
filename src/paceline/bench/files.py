"""Where a record goes: one JSON file per run, and its plots beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from paceline.bench.errors import BenchError
from paceline.whole_file import put_whole


def title(record: dict[str, Any]) -> str:
    """A short name for the run, the same for the same settings: what its files are called."""
    parts = [record["model"]["name"]]
    if grown := record["grown"]:
        parts.append(f"grown-{grown['layers']}" + (f"x{grown['width']}" if grown["width"] else ""))
    parts += [record["model"]["weights"], threads(record)]
    if name := record["settings"].get("name"):
        parts.append(name)
    return re.sub(r"[^\w.-]+", "-", "-".join(parts))


def threads(record: dict[str, Any]) -> str:
    """How many threads a run had, in words."""
    return f"{record['threads']} thread" + ("s" if record["threads"] != 1 else "")


def without_folders(spec: str, parts: int = 1) -> str:
    """A spec whose paths are their last parts: where they lie on one machine is nobody's business on another."""
    return re.sub(r'"([^"]*)"', lambda quoted: f'"{"/".join(Path(quoted[1]).parts[-parts:])}"', spec)


def writable(folder: Path) -> None:
    """Make the folder where it is missing, and write to it. Raises BenchError where it cannot: before a run, not behind it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as probe:
            probe.write(b"paceline")
    except FileExistsError:
        raise BenchError(f"cannot write to {folder}: it is no folder") from None
    except OSError as error:
        raise BenchError(f"cannot write to {folder}: {error.strerror}") from error


def check_place(planned: dict[str, Any], formats: Iterable[str], folder: Path) -> None:
    """Raises BenchError where the record of a run would take the place of another run's: before it is run, not behind it.

    planned: what is known of the record by then. formats: those that its weights may be held in. How often each thing is
    measured makes no other run.
    """
    for weights in formats:
        file = _place({**planned, "model": {**planned["model"], "weights": weights}}, folder)
        try:
            record = _settings(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            record = {}
        other = next((name for name, value in _settings(planned).items() if record.get(name) != value), None)
        if other is not None:
            raise BenchError(f"'{file}' is the record of a run with other {other}: tell this one from it with --name")


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    """What makes a run another one, by what it is called."""
    settings, tasks = record["settings"], record["tasks"]
    return {
        "drafts, verifiers or policies": sorted(sorted(mode.items()) for mode in settings["modes"].values()),
        "tasks": sorted((name, task["prompts"] + task["left_out"]) for name, task in tasks.items()),
        "batches": {row["batch"] for row in record["batches"]},
        # those asked for, wherever it runs. What failed is called by more than one word, but for a peer that could not be loaded
        "peers": {*record["peers"], *record["not_installed"], *(name for name in record["failed"] if " " not in name)},
        "temperature": settings["temperature"],
        "seed": settings["seed"],
        "length of answers": settings["max_tokens"],
        "context": settings["context_tokens"],
        "leave for lossy verifiers": settings["lossy"],
    }


def _place(record: dict[str, Any], folder: Path) -> Path:
    return folder / f"bench-{title(record)}.json"


def written(record: dict[str, Any], folder: Path) -> Path:
    """Write the record to `folder`, over one of the same settings. Raises BenchError where it cannot."""
    file = _place(record, folder)
    put_text(file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return file


def put_text(file: Path, text: str) -> None:
    """Write a file whole or not at all. What is no Unicode, as the bytes of some folders' names, is written as its escape. Raises
    BenchError where it cannot."""
    try:
        put_whole(file, text.encode("utf-8", "backslashreplace"), 0o666 & ~_umask())
    except OSError as error:
        raise BenchError(f"cannot write {file}: {error.strerror}") from error


def _umask() -> int:
    """What files of this process are not to others; it can only be read by being set."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def records(folder: Path) -> dict[Path, dict[str, Any]]:
    """Every record of `paceline bench` in a folder, by file; then those in its folders, one for each other machine."""
    found = {}
    for file in [*sorted(folder.glob("*.json")), *sorted(folder.glob("*/*.json"))]:
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("kind") == "paceline bench":
            found[file] = content
    return found
