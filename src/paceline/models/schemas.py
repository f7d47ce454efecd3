"""Schemas: JSON schemas as an answer is held to them, which is a little closer than they ask."""

from __future__ import annotations

from typing import Any

_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTED = frozenset({"anyOf", "oneOf", "prefixItems"})
_NESTED = frozenset({"items", "additionalProperties", "contains"})
_OTHERS = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties", "propertyNames"})
"""Where a schema says what else an object may hold, that stands."""
_ELSEWHERE = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
"""What may name more properties of the same object."""


def closed(schema: Any) -> Any:
    """The schema, where objects that name their properties hold no others unless it says so.

    Nobody who lists the fields of an answer wants to see others in it, and models write them when they may. What keeps to the
    result keeps to the schema. Parts of an `allOf` stay as they are: each of them names only some of the properties.
    """
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            kept[key] = {name: closed(each) for name, each in value.items()}
        elif key in _LISTED and isinstance(value, list):
            # an object that is spread over itself and its alternatives stays open
            kept[key] = value if "properties" in schema else [closed(each) for each in value]
        elif key in _NESTED:
            kept[key] = closed(value)
        else:
            kept[key] = value
    if isinstance(schema.get("properties"), dict) and not (_OTHERS | _ELSEWHERE) & schema.keys():
        kept["additionalProperties"] = False
    return kept
