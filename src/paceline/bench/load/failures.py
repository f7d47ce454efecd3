"""Failures: requests that were not answered, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.bench.load.settings import Load


def failures(record: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(load, body, text) for each kind of error, with its count and the server's first message."""
    for level in record["levels"]:
        for name, found in level["bodies"].items():
            for error, count in found["errors"].items():
                said = found["messages"].get(error)
                yield str(Load(**level["load"])), name, f"{count} times {error}{f', {said}' if said else ''}"
