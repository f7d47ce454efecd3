"""Multiples: how many remainders llguidance must distinguish for the `multipleOf`s of a JSON schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

LARGEST = 65_536
"""The library searches all remainders for a valid text, and none of its limits stops that: so many take up to a second on one
core and 40 MiB, ten million take minutes and gigabytes."""
_KEY = "multipleOf"
_WITHIN = re.compile(r"%json\s*")
_DECODER = json.JSONDecoder()
_TOGETHER = frozenset({"anyOf", "oneOf", "$ref"})


def of_schema(schema: Any) -> int:
    """The most remainders that a parsed JSON schema needs; if parts of it may apply to one value, their least common multiple."""
    found, together, waiting = list[int](), False, [schema]
    while waiting:
        one = waiting.pop()
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        if isinstance(one, dict):
            together = together or _combines(one)
            value = one.get(_KEY)
            if type(value) in (int, float):
                found.append(_remainders(repr(value)))
    return math.lcm(*found) if together else max(found, default=1)


def of_lark(text: str) -> int:
    """The most remainders of any JSON schema within a Lark grammar, or within the library's JSON form of several grammars."""
    try:
        held = json.loads(text)["grammars"]
        schemas, more = [one.get("json_schema") for one in held], [one.get("lark_grammar") or "" for one in held]
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        schemas, more = [_first(text, found.end()) for found in _WITHIN.finditer(text)], []
    return max([*map(of_schema, schemas), *map(of_lark, more)], default=1)


def _first(text: str, at: int) -> Any:
    """The JSON value that begins at `at`; None if there is none, which the library refuses later."""
    try:
        return _DECODER.raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None


def _combines(schema: Mapping[str, Any]) -> bool:
    return "allOf" in schema or len(_TOGETHER & schema.keys()) + (_KEY in schema) > 1


def _remainders(number: str) -> int:
    """The remainders of one number as Python writes it: its digits, as point, exponent and last zeros show in the text itself."""
    digits = number.partition("e")[0].replace(".", "").strip("-0")
    # more digits are too large in any case
    return int(digits[:20] or 1)
