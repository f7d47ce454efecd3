"""Where the record of a load goes: one JSON file per run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from paceline.bench.errors import BenchError


def title(record: dict[str, Any]) -> str:
    """A short name for the run: the model and its loads."""
    kind = "find-rate" if record["find_rate"] else record["levels"][0]["load"]["kind"]
    values = [] if record["find_rate"] else [f"{level['load']['value']:g}" for level in record["levels"]]
    parts = [record["server"]["model"].rstrip("/").rpartition("/")[2], record["settings"]["endpoint"], kind, *values]
    against = ["against"] if record["settings"]["against"] is not None else []
    return re.sub(r"[^\w.-]+", "-", "-".join([*parts, *against]))[:120]


def written(record: dict[str, Any], folder: Path) -> Path:
    """Write the record to a new file in `folder`. Raises BenchError where it cannot."""
    stem = f"serve-{title(record)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = sum(1 for file in folder.glob("*.json") if re.fullmatch(re.escape(stem) + r"(-\d+)?", file.stem))
        file = folder / (f"{stem}-{taken + 1}.json" if taken else f"{stem}.json")
        file.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write to {folder}: {error.strerror}") from error
    return file
