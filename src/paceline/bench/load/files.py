"""Files of load records: one JSON file per run."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from paceline.bench.errors import BenchError
from paceline.bench.files import put_text


def title(record: dict[str, Any]) -> str:
    """A short name for the run: the model and its loads."""
    kind = "find-rate" if record["find_rate"] else record["levels"][0]["load"]["kind"]
    values = [] if record["find_rate"] else [f"{level['load']['value']:g}" for level in record["levels"]]
    parts = [record["server"]["model"].rstrip("/").rpartition("/")[2], record["settings"]["endpoint"], kind, *values]
    against = ["against"] if record["settings"]["against"] is not None else []
    return re.sub(r"[^\w.-]+", "-", "-".join([*parts, *against]))[:120]


def written(record: dict[str, Any], folder: Path) -> Path:
    """Write the record to a new file in `folder`. Raises BenchError on failure."""
    stem = f"serve-{title(record)}"
    names = chain([f"{stem}.json"], (f"{stem}-{number}.json" for number in count(2)))
    file = next(folder / name for name in names if _claimed(folder / name))
    try:
        put_text(file, json.dumps(record, ensure_ascii=False) + "\n")
    except BaseException:
        # an empty file is not a record, and code that reads all records would fail on it
        with suppress(OSError):
            file.unlink()
        raise
    return file


def _claimed(file: Path) -> bool:
    """Create a file unless it exists; returns whether it was created. Raises BenchError if it cannot be created."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("x").close()
    except FileExistsError:
        return False
    except OSError as error:
        raise BenchError(f"cannot write {file}: {error.strerror}") from error
    return True
