"""Schemas: JSON schemas, made slightly stricter before grammars are made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from paceline.models.exclusive import Allowed, Alternative, Comparisons

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
    shared = set[str]()
    _share([place for place, schema in places.items() if _parts(schema) > 1], places, shared)
    comparisons, alternatives = Comparisons(), dict[str, Alternative]()
    unions = dict[str, tuple[list[str], set[str] | None]]()
    for place, schema in places.items():
        if isinstance(schema.get("oneOf"), list):
            below = [_followed(f"{place}/oneOf/{at}", places) for at in range(len(schema["oneOf"]))]
            for one in below:
                # several `oneOf` may refer to it
                alternatives[one] = alternatives.get(one) or _alternative(one, places)
            unions[place] = below, comparisons.relied_on([alternatives[one] for one in below])
    while open_ := [place for place, (_, relied) in unions.items() if relied is None or not relied.isdisjoint(shared)]:
        for place in open_:
            _share(unions.pop(place)[0], places, shared)
    return shared


def _share(waiting: list[str], places: Mapping[str, Mapping[str, Any]], shared: set[str]) -> None:
    """Add places to `shared`, with those that describe the same values."""
    first = dict[str, str]()
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


def _alternative(place: str, places: Mapping[str, Mapping[str, Any]]) -> Alternative:
    """What is compared of the schema at a place."""
    schema = places.get(place, {})
    given = schema.get("required")
    required = frozenset(name for name in given if isinstance(name, str)) if isinstance(given, list) else frozenset[str]()
    properties = {name: below for below, key, name, _ in _inside(schema, place) if key == "properties"}
    tags = {name: Allowed.by(places.get(_followed(properties[name], places), {})) for name in required & properties.keys()}
    listed = frozenset(properties) if _names_all(schema) else None
    return Alternative(place, Allowed.by(schema), required, tags, listed)


def _followed(place: str, places: Mapping[str, Mapping[str, Any]]) -> str:
    """The place, or the one that the schema there refers to."""
    for _ in range(DEEPEST):
        schema = places.get(place, {})
        if "$ref" not in schema:
            return place
        place = unquote(str(schema["$ref"]))
    return ""


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
