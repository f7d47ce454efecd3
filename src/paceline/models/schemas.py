"""Schemas: JSON schemas as an answer is held to them, which is a little closer than they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

DEEPEST = 32
"""Levels of a schema that a grammar is made of."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf"})
_LISTED = _IN_PLACE | {"prefixItems"}
_NESTED = frozenset({"items", "additionalProperties", "contains"})
_OTHERS = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties", "propertyNames"})
"""Where a schema says what else an object may hold, that stands."""
_OWN = _OTHERS | {"properties", "required"}
_ELSEWHERE = _IN_PLACE | {"$ref", "$dynamicRef", "if", "dependentSchemas", "dependentRequired"}
"""What may name more properties of the same object."""
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""Those that a grammar can be made of."""


def levels_of(value: Any) -> int:
    """How deep the objects and arrays of JSON nest, counted only up to one more than `DEEPEST`."""
    levels, level = 0, [value]
    while levels <= DEEPEST and (level := [one for one in level if isinstance(one, Mapping | list)]):
        levels += 1
        level = [below for one in level for below in (one.values() if isinstance(one, Mapping) else one)]
    return levels


def closed(schema: Any) -> Any:
    """The schema, where objects that name their properties hold no others unless it says so.

    Nobody who lists the fields of an answer wants to see others in it, and models write them when they may. What keeps to the
    result keeps to the schema. Schemas that describe an object together stay open, since each names only some of its
    properties, and so does one that requires what it does not name. A `format` that no grammar can be made of only remarks on
    a value, and goes.
    """
    # written and read, so that nothing in it stands in two places
    kept = json.loads(json.dumps(schema))
    places = dict(_places(kept, "#"))
    shared = _shared(places)
    for place, one in places.items():
        if "format" in one and one["format"] not in _FORMATS:
            del one["format"]
        if place not in shared and _names_all(one):
            one["additionalProperties"] = False
    return kept


def _names_all(schema: Mapping[str, Any]) -> bool:
    named, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list) or _OTHERS & schema.keys():
        return False
    return all(isinstance(name, str) and name in named for name in required)


def _shared(places: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Where schemas are that describe something together with another: parts of an `allOf`, what a `$ref` names that stands
    beside properties, and so on from there."""
    shared, first = set[str](), dict[str, str]()
    waiting = [place for place, schema in places.items() if _parts(schema) > 1]
    while waiting:
        place = waiting.pop()
        if place in shared or place not in places:
            continue
        shared.add(place)
        for below, key, name, _ in _inside(places[place], place):
            if key in _IN_PLACE:
                waiting.append(below)
            # two that name the same property say together what it is
            elif key == "properties" and first.setdefault(name, below) != below:
                waiting += [first[name], below]
        waiting.append(unquote(str(places[place].get("$ref"))))
    return shared


def _parts(schema: Mapping[str, Any]) -> int:
    """How many schemas describe what this one does, itself included where it says anything of an object."""
    together = schema.get("allOf")
    more = len(together) - 1 if isinstance(together, list) else 0
    return bool(_OWN & schema.keys()) + len(_ELSEWHERE & schema.keys()) + more


def _places(schema: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all within it, by their JSON pointers."""
    if isinstance(schema, dict):
        yield place, schema
        for below, _, _, each in _inside(schema, place):
            yield from _places(each, below)


def _inside(schema: Mapping[str, Any], place: str) -> Iterator[tuple[str, str, str, Any]]:
    """The schemas that one holds: their places, the keyword they stand under, their names there, and themselves."""
    for key, value in schema.items():
        each = dict[Any, Any]()
        if key in _NAMED and isinstance(value, dict):
            each = value
        elif key in _LISTED and isinstance(value, list):
            each = dict(enumerate(value))
        elif key in _NESTED:
            yield f"{place}/{key}", key, "", value
        for name, one in each.items():
            yield f"{place}/{key}/{str(name).replace('~', '~0').replace('/', '~1')}", key, str(name), one
