"""Files of records: one JSON file per run, with its plots beside it."""

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
    """A short name for the run, equal for equal settings, used in file names."""
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
    """A spec with its paths shortened to their last `parts` parts, since folders of one machine mean nothing on another."""
    return re.sub(r'"([^"]*)"', lambda quoted: f'"{"/".join(Path(quoted[1]).parts[-parts:])}"', spec)


def writable(folder: Path) -> None:
    """Create the folder if it is missing, and check that it is writable. Raises BenchError; called before a run, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as probe:
            probe.write(b"paceline")
    except FileExistsError:
        raise BenchError(f"cannot write to {folder}: it is no folder") from None
    except OSError as error:
        raise BenchError(f"cannot write to {folder}: {error.strerror}") from error


def check_place(planned: dict[str, Any], formats: Iterable[str], folder: Path) -> None:
    """Raises BenchError if the record of a run would overwrite that of another run; called before the run, not after it.

    planned: the part of the record that is known by then. formats: possible formats of its weights. The number of repeats does
    not make a different run.
    """
    for weights in formats:
        file = _place({**planned, "model": {**planned["model"], "weights": weights}}, folder)
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            there = _settings(record) | _digests(record)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            there = {}
        here = _settings(planned) | {name: value for name, value in _digests(planned).items() if name in there}
        other = next((name for name, value in here.items() if there.get(name) != value), None)
        if other is not None:
            raise BenchError(f"'{file}' is the record of a run with other {other}: tell this one from it with --name")


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    """The settings by which runs differ, by their names in messages."""
    settings, tasks = record["settings"], record["tasks"]
    return {
        "drafts, verifiers or policies": sorted(sorted(mode.items()) for mode in settings["modes"].values()),
        "tasks": sorted((name, task["prompts"] + task["left_out"]) for name, task in tasks.items()),
        "batches": {row["batch"] for row in record["batches"]},
        # those requested, on any machine. Only a peer that could not be loaded has a single word as its name in `failed`
        "peers": {*record["peers"], *record["not_installed"], *(name for name in record["failed"] if " " not in name)},
        "temperature": settings["temperature"],
        "seed": settings["seed"],
        "length of answers": settings["max_tokens"],
        "context": settings["context_tokens"],
        "leave for lossy verifiers": settings["lossy"],
    }


def _digests(record: dict[str, Any]) -> dict[str, str]:
    """Digests of what a run read, by their names in messages; older records lack them."""
    found = {f"prompts in '{name}'": task.get("sha256") for name, task in record["tasks"].items()}
    found["weights"] = record["model"].get("sampled_sha256")
    return {name: digest for name, digest in found.items() if digest is not None}


def _place(record: dict[str, Any], folder: Path) -> Path:
    return folder / f"bench-{title(record)}.json"


def written(record: dict[str, Any], folder: Path) -> Path:
    """Write the record to `folder`, replacing one with the same settings. Raises BenchError on failure."""
    file = _place(record, folder)
    put_text(file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return file


def put_text(file: Path, text: str) -> None:
    """Write a file completely or not at all. Characters that are not valid Unicode, as in some folder names, are written as
    escapes. Raises BenchError on failure."""
    try:
        put_whole(file, text.encode("utf-8", "backslashreplace"), 0o666 & ~_umask())
    except OSError as error:
        raise BenchError(f"cannot write {file}: {error.strerror}") from error


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def records(folder: Path) -> dict[Path, dict[str, Any]]:
    """Every record of `paceline bench` in a folder, by file; then those in its subfolders, one per other machine."""
    found = {}
    for file in [*sorted(folder.glob("*.json")), *sorted(folder.glob("*/*.json"))]:
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("kind") == "paceline bench":
            found[file] = content
    return found
