"""Multiples: how many remainders the `multipleOf` of a JSON schema has llguidance tell apart."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

LARGEST = 65_536
"""The library looks for a text that keeps to a schema among all remainders, and none of its limits ends that: so many take it up
to a second on one core and 40 MiB, ten million take minutes and gigabytes."""
_KEY = "multipleOf"
_WITHIN = re.compile(r"%json\s*")
_DECODER = json.JSONDecoder()
_TOGETHER = frozenset({"anyOf", "oneOf", "$ref"})


def of_schema(schema: Any) -> int:
    """The most remainders that a parsed JSON schema asks for; where parts of it hold of one value, those of all together."""
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
    """Those of the JSON schemas within a Lark grammar, or within several, in the form in which the library takes them at once."""
    try:
        held = json.loads(text)["grammars"]
        schemas, more = [one.get("json_schema") for one in held], [one.get("lark_grammar") or "" for one in held]
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        schemas, more = [_first(text, found.end()) for found in _WITHIN.finditer(text)], []
    return max([*map(of_schema, schemas), *map(of_lark, more)], default=1)


def _first(text: str, at: int) -> Any:
    """The JSON value that begins there; None where there is none, which the library refuses."""
    try:
        return _DECODER.raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None


def _combines(schema: Mapping[str, Any]) -> bool:
    return "allOf" in schema or len(_TOGETHER & schema.keys()) + (_KEY in schema) > 1


def _remainders(number: str) -> int:
    """Of a number as Python writes it: its digits alone, since point, exponent and zeros at its end show in the text itself."""
    digits = number.partition("e")[0].replace(".", "").strip("-0")
    # so many are too large in any case
    return int(digits[:20] or 1)
