"""Objects that name their properties hold no others, unless their schema says so."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.models.schemas import closed

ONE = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**ONE, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (ONE, CLOSED),
        ({"properties": {}}, {"properties": {}, "additionalProperties": False}),
        ({"type": "array", "items": ONE}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [ONE, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        (
            {"$defs": {"x": ONE}, "properties": {"y": {"$ref": "#/$defs/x"}}},
            {"$defs": {"x": CLOSED}, "properties": {"y": {"$ref": "#/$defs/x"}}, "additionalProperties": False},
        ),
    ],
)
def test_named_properties_are_all_there_are(schema: Any, wanted: Any) -> None:
    assert closed(schema) == wanted
    assert closed(wanted) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        {**ONE, "additionalProperties": {"type": "string"}},
        {**ONE, "additionalProperties": True},
        {**ONE, "patternProperties": {"^x": {}}},
        {"allOf": [ONE, {"properties": {"b": {}}}]},
        {**ONE, "anyOf": [{"properties": {"b": {}}}, {"properties": {"c": {}}}]},
        {**ONE, "$ref": "#/$defs/more"},
        {**ONE, "minProperties": 2},
        {"enum": [{"properties": {}}], "default": ONE},
    ],
)
def test_what_says_otherwise_stands(schema: Any) -> None:
    assert closed(schema) == schema
