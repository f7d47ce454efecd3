"""Schemas: JSON schemas, made slightly stricter before grammars are made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence as Many
from itertools import combinations
from typing import Any
from urllib.parse import unquote

DEEPEST = 32
"""Deepest nesting of a schema that is accepted."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf"})
_LISTED = _IN_PLACE | {"prefixItems"}
_NESTED = frozenset({"items", "additionalProperties", "contains"})
_OTHERS = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties", "propertyNames"})
"""Keywords by which a schema itself decides about further properties; such a schema is left open."""
_OWN = _OTHERS | {"properties", "required"}
_ELSEWHERE = _IN_PLACE | {"$ref", "$dynamicRef", "if", "dependentSchemas", "dependentRequired"}
"""Keywords that may name further properties of the same object."""
_MOST_ALTERNATIVES = 64
"""Most alternatives of a `oneOf` that are compared with each other."""
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""Values of `format` that a grammar can enforce."""


def levels_of(value: Any) -> int:
    """Nesting depth of a JSON value's objects and arrays, counted up to `DEEPEST` + 1."""
    levels, level = 0, [value]
    while levels <= DEEPEST and (level := [one for one in level if isinstance(one, Mapping | list)]):
        levels += 1
        level = [below for one in level for below in (one.values() if isinstance(one, Mapping) else one)]
    return levels


def closed(schema: Any) -> Any:
    """A copy of the schema in which objects that list their properties allow no others, unless the schema says so.

    Users who list the fields of an answer want no others, and models write extra fields if allowed. Every value valid for the
    result is valid for the schema. Schemas that describe one object jointly stay open, since each lists only some of its
    properties, and so does a schema that requires properties it does not list. So do alternatives of a `oneOf` that do not
    exclude each other as they are: closed they would, and a value would be accepted that is valid for two. A `format` that no
    grammar can enforce is removed, since it is only an annotation.
    """
    # dumped and loaded, so that no part of it is shared between two places
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
    """Places of schemas that describe a value jointly with another: parts of an `allOf`, the target of a `$ref` that stands
    beside properties, alternatives of a `oneOf` that may hold of one value, and so on recursively."""
    shared, first = set[str](), dict[str, str]()
    waiting = [place for place, schema in places.items() if _parts(schema) > 1]
    for place, schema in places.items():
        alternatives = schema.get("oneOf")
        if isinstance(alternatives, list) and not _exclusive(alternatives, places):
            waiting += [f"{place}/oneOf/{number}" for number in range(len(alternatives))]
    while waiting:
        place = waiting.pop()
        if place in shared or place not in places:
            continue
        shared.add(place)
        for below, key, name, _ in _inside(places[place], place):
            if key in _IN_PLACE:
                waiting.append(below)
            # two schemas that list the same property describe it jointly
            elif key == "properties" and first.setdefault(name, below) != below:
                waiting += [first[name], below]
        waiting.append(unquote(str(places[place].get("$ref"))))
    return shared


def _exclusive(alternatives: Many[Any], places: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether no value is valid for two of the alternatives, as far as their types and tags show."""
    if len(alternatives) > _MOST_ALTERNATIVES:
        return False
    return all(_apart(_referred(one, places), _referred(other, places), places) for one, other in combinations(alternatives, 2))


def _apart(one: Mapping[str, Any], other: Mapping[str, Any], places: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether no value is valid for both schemas: by their types, their constants, or those of a property that both require."""
    if _differ(one, other):
        return True
    if _types(one) != {"object"} or _types(other) != {"object"}:
        # a value that is no object needs no property
        return False
    tags, others = _tags(one), _tags(other)
    return any(_differ(_referred(tags[name], places), _referred(others[name], places)) for name in tags.keys() & others.keys())


def _tags(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that an object must have, with their schemas."""
    named, required = schema.get("properties"), schema.get("required")
    if not isinstance(named, dict) or not isinstance(required, list):
        return {}
    return {name: one for name, one in named.items() if name in required}


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two schemas allow no value in common, by their types or constants."""
    kinds, others = _types(one), _types(other)
    if kinds and others and not kinds & others:
        return True
    first, second = ([each["const"]] if "const" in each else each.get("enum") for each in (one, other))
    return isinstance(first, list) and isinstance(second, list) and not any(value in second for value in first)


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows; empty if it allows all. An integer is a number."""
    given = schema.get("type")
    kinds = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return {"number" if kind == "integer" else str(kind) for kind in kinds}


def _referred(schema: Any, places: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The schema, or the one that it refers to."""
    for _ in range(DEEPEST):
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" not in schema:
            return schema
        schema = places.get(unquote(str(schema["$ref"])))
    return {}


def _parts(schema: Mapping[str, Any]) -> int:
    """How many schemas describe the same value as this one, itself included if it has keywords for objects."""
    together = schema.get("allOf")
    more = len(together) - 1 if isinstance(together, list) else 0
    return bool(_OWN & schema.keys()) + len(_ELSEWHERE & schema.keys()) + more


def _places(schema: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all schemas within it, with their JSON pointers."""
    if isinstance(schema, dict):
        yield place, schema
        for below, _, _, each in _inside(schema, place):
            yield from _places(each, below)


def _inside(schema: Mapping[str, Any], place: str) -> Iterator[tuple[str, str, str, Any]]:
    """The direct subschemas: their JSON pointer, the keyword they are under, their name there, and the subschema."""
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
