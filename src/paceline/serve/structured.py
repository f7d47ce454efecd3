"""Grammars of a request: response_format, structured_outputs and the guided_ fields, each as a `Grammar`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from paceline.params import Grammar
from paceline.serve.asking import Service
from paceline.serve.errors import APIError, invalid
from paceline.serve.wire.generation import Extensions, Generation, StructuredOutputs

_LONGEST = 65536
"""Most characters of a grammar in a request."""


def wanted(fields: Generation) -> Grammar | None:
    """The grammar of a completion, from whichever field sets one. Raises APIError (400) if several do."""
    asked = fields.response_format
    schema = None if asked is None else schema_of(asked.type, asked.json_schema and asked.json_schema.schema_)
    return only(fields, schema, "response_format", "response_format.json_schema.schema")


def schema_of(kind: str, schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The schema of a format: "text" has none, "json_object" and one without `schema` any object's."""
    return None if kind == "text" else {"type": "object"} if schema is None else schema


def only(fields: Extensions, schema: Mapping[str, Any] | None, param: str, place: str) -> Grammar | None:
    """The grammar of the schema that a field of the API asks for, else of `structured`. param: the field. place: of the schema in
    it. Raises APIError (400) if there are both."""
    outputs = structured(fields)
    if schema is None:
        return outputs
    if outputs is not None:
        raise invalid(f"'{param}' excludes other structured output", param)
    return schema_grammar(schema, place)


def structured(fields: Extensions) -> Grammar | None:
    """The grammar of `structured_outputs` or of a `guided_` field. Raises APIError (400) if there are several."""
    outputs = fields.structured_outputs or StructuredOutputs()
    given: dict[str, Grammar] = {}
    for prefix, schema, regex, lark, choice in (
        ("structured_outputs.", outputs.json_, outputs.regex, outputs.grammar, outputs.choice),
        ("guided_", fields.guided_json, fields.guided_regex, fields.guided_grammar, fields.guided_choice),
    ):
        if schema is not None:
            given[f"{prefix}json"] = schema_grammar(schema, f"{prefix}json")
        if regex is not None:
            given[f"{prefix}regex"] = grammar("regex", regex, f"{prefix}regex")
        if lark is not None:
            given[f"{prefix}grammar"] = grammar("lark", lark, f"{prefix}grammar")
        if choice is not None:
            # Lark's string literals are JSON strings
            text = "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in choice)
            given[f"{prefix}choice"] = grammar("lark", text, f"{prefix}choice")
    # some clients write one in both forms
    if len({(one.kind, one.text) for one in given.values()}) > 1:
        first, second, *_ = given
        raise invalid(f"'{first}' and '{second}' exclude each other", second)
    if fields.structured_outputs is not None and not given:
        raise invalid("'structured_outputs' must hold one of json, regex, grammar or choice", "structured_outputs")
    return next(iter(given.values()), None)


def schema_grammar(schema: Mapping[str, Any] | str, param: str) -> Grammar:
    """A JSON schema as a grammar. Raises APIError (400)."""
    try:
        text = (
            schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        )
    except (ValueError, RecursionError):
        raise invalid(f"'{param}' holds what JSON cannot: NaN, an infinity, or too many levels", param) from None
    return grammar("json_schema", text, param)


def grammar(kind: str, text: str, param: str) -> Grammar:
    """Raises APIError (400) if the text is empty or too long."""
    if len(text) > _LONGEST:
        raise invalid(f"'{param}' has more than {_LONGEST} characters", param)
    try:
        return Grammar.model_validate({"kind": kind, "text": text})
    except ValidationError as error:
        raise invalid(f"'{param}': {error.errors(include_url=False)[0]['msg']}", param) from None


async def check(service: Service, asked: Grammar | None, param: str) -> None:
    """Raises APIError, as `Service.check_grammar` does, with the name of the field."""
    if asked is not None:
        try:
            await service.check_grammar(asked)
        except APIError as error:
            error.param = error.param or param
            raise


def param_of(fields: Generation) -> str:
    """The field that sets the grammar."""
    names = ("structured_outputs", "guided_json", "guided_regex", "guided_grammar", "guided_choice")
    return next((name for name in names if getattr(fields, name) is not None), "response_format")
