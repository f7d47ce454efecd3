"""Objects with named properties allow no others, unless their schema says so."""

from __future__ import annotations

import json
from random import Random
from time import perf_counter
from typing import Any

import pytest
from llguidance import LLMatcher

from grammars import VOCABULARY, tokenizer
from paceline.constraint import GrammarError
from paceline.models.grammar import Grammars
from paceline.models.schemas import closed
from paceline.params import Grammar

ONE = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**ONE, "additionalProperties": False}


def tagged(key: str, *values: Any, **more: Any) -> dict[str, Any]:
    """A union of objects that a property tells apart, as pydantic writes it."""
    defs = {
        f"d{number}": {"type": "object", "properties": {"kind": {key: value}, f"p{number}": {}}, "required": ["kind"], **more}
        for number, value in enumerate(values)
    }
    return {"$defs": defs, "oneOf": [{"$ref": f"#/$defs/{name}"} for name in defs]}


def needing(*alternatives: str, **more: Any) -> dict[str, Any]:
    """A union of objects that require these properties, each of one letter."""
    return {
        "oneOf": [
            {"type": "object", "properties": {name: {} for name in names}, "required": [*names], **more} for names in alternatives
        ]
    }


A, B = needing("a", "b")["oneOf"]


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
        ({"$defs": {"x": ONE}, "allOf": [{"$ref": "#/$defs/x"}]}, {"$defs": {"x": CLOSED}, "allOf": [{"$ref": "#/$defs/x"}]}),
        (ONE | {"required": ["a"]}, CLOSED | {"required": ["a"]}),
        ({"oneOf": [ONE, {"type": ["null", "integer"]}]}, {"oneOf": [CLOSED, {"type": ["null", "integer"]}]}),
        ({"oneOf": [ONE]}, {"oneOf": [CLOSED]}),
        (needing("a", "b"), needing("a", "b", additionalProperties=False)),
        (
            {"$defs": {"a b": A, "c d": B}, "oneOf": [{"$ref": "#/$defs/a%20b"}, {"$ref": "#/$defs/c%20d"}]},
            {
                "$defs": {name: {**one, "additionalProperties": False} for name, one in (("a b", A), ("c d", B))},
                "oneOf": [{"$ref": "#/$defs/a%20b"}, {"$ref": "#/$defs/c%20d"}],
            },
        ),
        (needing("ia", "ib", "ic"), needing("ia", "ib", "ic", additionalProperties=False)),
        (tagged("const", "x", "y"), tagged("const", "x", "y", additionalProperties=False)),
        (tagged("enum", ["x"], ["y", "z"]), tagged("enum", ["x"], ["y", "z"], additionalProperties=False)),
    ],
)
def test_objects_with_named_properties_get_additional_properties_false(schema: Any, wanted: Any) -> None:
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
        {**ONE, "required": ["b"]},
        {"required": ["b"], "anyOf": [ONE]},
        {"$defs": {"x": ONE}, "allOf": [{"$ref": "#/$defs/x"}, {"properties": {"b": {}}}]},
        {"$defs": {"x": ONE}, "$ref": "#/$defs/x", "required": ["b"]},
        {"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/y~1~0z"}]}, "y/~z": ONE}, "$ref": "#/$defs/x", "properties": {}},
        {"allOf": 3, "anyOf": None, "properties": [], "required": 1, "$ref": 2, "format": "date"},
        {"enum": [{"properties": {}}], "default": ONE},
        {"oneOf": [ONE, {"type": "object", "properties": {"b": {}}}]},
        {"oneOf": [ONE, {"properties": {"b": {"type": "integer"}}}]},
        {"oneOf": [ONE, *({"const": number} for number in range(32))]},
        needing("a", "ab"),
        # an integer is a number
        {"oneOf": [{**A, "properties": {"a": {"type": kind}, kind: {}}} for kind in ("integer", "number")]},
        # a property that may be absent tells nothing apart
        {"oneOf": [{"type": "object", "properties": {"k": {"const": n}, f"p{n}": {}}, "required": []} for n in (1, 2)]},
        # both describe the same property
        {"allOf": [{"properties": {"a": {"properties": {name: {}}}}} for name in "xy"]},
        {**needing("a", "b"), "properties": {"c": needing("c", "cd")}, "additionalProperties": {}},
        # the first one stays open beside properties, and may have what the second requires
        {
            "$defs": {"x": needing("a")["oneOf"][0]},
            "allOf": [{"$ref": "#/$defs/x"}, {"oneOf": [{"$ref": "#/$defs/x"}, needing("b")["oneOf"][0]]}],
        },
        {"oneOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]}, ONE | {"required": ["a"]}]},
        tagged("enum", ["x", "y"], ["y", "z"]),
        {"oneOf": [{"$ref": "#/oneOf/0"}, {"$ref": "#"}, 3], "type": [{}]},
    ],
)
def test_schemas_that_allow_other_properties_are_left_unchanged(schema: Any) -> None:
    assert closed(schema) == schema


def test_a_schema_made_to_compare_much_is_closed_at_once() -> None:
    """Some of these are read by the thread that answers all requests."""
    defs = {f"d{at}": {"enum": [f"{at}-{number}" for number in range(80)]} for at in range(32)}
    union = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in defs]}
    schema = {"$defs": defs, "properties": {f"p{at}": union for at in range(40)}}
    assert len(json.dumps(schema)) < 65536
    began = perf_counter()
    closed(schema)
    assert perf_counter() - began < 1.0


def test_unsupported_string_formats_are_removed() -> None:
    for known in ("date", "date-time", "uuid"):
        assert closed({"type": "string", "format": known}) == {"type": "string", "format": known}
    properties = {"format": {"type": "string", "format": "password"}, "b": {"type": "string", "format": ["x"]}}
    bare = {"format": {"type": "string"}, "b": {"type": "string"}}
    assert closed({"allOf": [{"properties": properties}, {}]}) == {"allOf": [{"properties": bare}, {}]}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tokenizer(), VOCABULARY)


BASE = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
MORE = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#/$defs/base"}, MORE], "$defs": {"base": BASE}},
        {"allOf": [{"$ref": "#/$defs/base"}, {"properties": MORE["properties"]}], "$defs": {"base": BASE}},
        {"allOf": [{"$ref": "#/$defs/base"}, {"$ref": "#/$defs/more"}], "$defs": {"base": BASE, "more": MORE}},
        {"$ref": "#/$defs/base", **MORE, "$defs": {"base": BASE}},
        {**BASE, "anyOf": [{"$ref": "#/$defs/more"}], "$defs": {"more": MORE}},
        {**BASE, "oneOf": [MORE]},
        {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["x"]},
    ],
)
def test_properties_of_combined_schemas_of_one_object_all_stay_allowed(schema: Any, grammars: Grammars) -> None:
    # properties must come in the order in which the schemas name them
    for text in ('{"id":1,"x":2}', '{"x":2,"id":1}'):
        matcher = grammars._known(Grammar(kind="json_schema", text=json.dumps(schema))).deep_copy()
        ids = tokenizer().encode(text, add_special=False)
        if matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting():
            return
    pytest.fail("neither order is accepted")


def drawn(stream: Random, depth: int = 0) -> dict[str, Any]:
    """Objects with a few properties, spread over references and the keywords beside them."""
    reference = {"$ref": f"#/$defs/{stream.choice('XYZ')}"}
    below = [drawn(stream, depth + 1) for _ in range(stream.randint(1, 2))] if depth < 3 else [{"type": "integer"}]
    named = {name: stream.choice([*below, reference]) for name in stream.sample("abc", stream.randint(1, 2))}
    own = {"type": "object", "properties": named, "required": stream.sample([*named, "q"], stream.randint(0, len(named)))}
    beside = stream.choice([reference, {stream.choice(["allOf", "anyOf"]): below}])
    return stream.choice([{"type": "integer"}, own, own, reference, {"allOf": below}, {"anyOf": below}, own | beside])


def test_every_random_schema_that_compiles_stays_usable_once_closed(grammars: Grammars) -> None:
    stream, had = Random(3), 0
    for _ in range(400):
        schema = drawn(stream) | {"$defs": {name: drawn(stream, 1) for name in "XYZ"}}
        matcher = LLMatcher(grammars._library, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
        if not matcher.is_error():
            # a reference to itself fails only here
            matcher.compute_bitmask()
        if matcher.is_error():
            continue
        had += 1
        try:
            grammars.check(Grammar(kind="json_schema", text=json.dumps(schema)))
        except GrammarError as error:
            pytest.fail(f"{error}: {schema}")
    assert had > 150
