"""JSON serialized in pieces, between which other threads can run: a single call for all of it would block them to its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_TOGETHER = 64
"""Entries of a list that are serialized in one call."""


def pieces(value: Any) -> Iterator[str]:
    """The JSON text of a value, in pieces."""
    if isinstance(value, dict):
        opening = "{"
        for name, held in value.items():
            yield f"{opening}{dumped(name)}:"
            yield from pieces(held)
            opening = ","
        yield "}" if value else "{}"
    elif isinstance(value, list) and len(value) > _TOGETHER:
        for low in range(0, len(value), _TOGETHER):
            yield ("," if low else "[") + dumped(value[low : low + _TOGETHER])[1:-1]
        yield "]"
    elif isinstance(value, list):
        opening = "["
        for held in value:
            yield opening
            yield from pieces(held)
            opening = ","
        yield "]" if value else "[]"
    else:
        yield dumped(value)


def dumped(value: Any) -> str:
    """The JSON text of a value, in one call."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
