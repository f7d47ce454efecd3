"""The grammar of an answer that may call tools: free text, calls in the model's form, arguments by the tool's own schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Many
from typing import Any

from pydantic import ValidationError

from paceline.models.schemas import closed
from paceline.params import LONGEST_GRAMMAR, Grammar
from paceline.serve.errors import invalid
from paceline.serve.tool_forms import PYTHON_TAG, Form

_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NESTED = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
_REMARKS = frozenset({"description", "title", "examples", "default", "$comment", "deprecated", "x-guidance"})
_PATTERNS = frozenset({"pattern", "patternProperties"})
_NOT_IN_THOUGHT = r"(TEXT & ~/\s*<think>(.|\n)*/) | /\s*<think>(.|\n)*<\/think>(.|\n)*/"


def bare(schema: Any, left_out: frozenset[str] = _REMARKS) -> Any:
    """A JSON schema without keywords that do not constrain instances: descriptions alone can exceed the longest grammar.

    left_out: the keywords to remove.
    """
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in left_out:
            continue
        if key in _NAMED and isinstance(value, Mapping):
            kept[key] = {name: bare(each, left_out) for name, each in value.items()}
        elif (key in _LISTED or key in _NESTED) and isinstance(value, list):
            kept[key] = [bare(each, left_out) for each in value]
        else:
            kept[key] = bare(value, left_out) if key in _NESTED else value
    return kept


def _json_rule(schema: Mapping[str, Any], strict: bool, patterns: bool = True) -> str:
    # fixed whitespace keeps a weak model from writing endless blanks, and lets schemas share one lexer
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": not strict}
    left_out = _REMARKS if strict or patterns else _REMARKS | _PATTERNS
    return "%json " + json.dumps({**closed(bare(schema, left_out)), "x-guidance": options}, ensure_ascii=False)


def grammar_of(
    form: Form,
    functions: Many[Mapping[str, Any]],
    *,
    free: bool,
    several: bool,
    special: Mapping[str, int],
    answer: Mapping[str, Any] | None = None,
    patterns: bool = True,
    thoughts: bool = False,
) -> Grammar:
    """The grammar of an answer that is one or several calls or, if `free`, text instead of calls or before them.

    functions: name, parameters, strict of each. special: ids of the form's pieces that are special tokens, which no text can
    spell. answer: the JSON schema of an answer without a call. patterns: whether to enforce the regular expressions in schemas of
    tools that are not strict. thoughts: whether the text may begin with a thought, in which nothing is a call. Raises APIError
    (400) if the grammar would be too long, or could not distinguish a call from an answer by schema.
    """

    if answer is not None and not form.trigger:
        raise invalid(
            "this model's calls look like JSON answers: ask for a schema or for tools that may be left uncalled", "tools"
        )

    def written(pieces: Many[str]) -> list[str]:
        return [f"<[{special[piece]}]>" if piece in special else json.dumps(piece) for piece in pieces if piece]

    rules = []
    trigger, opening = form.trigger, written(form.opening)
    if trigger and free and answer is None:
        if trigger in special:
            opening = ["BEFORE", *opening]
        else:
            # lazy: the text becomes a call as soon as the trigger appears
            rules.append(f"begun[lazy]: BEFORE {opening[0]}")
            opening = ["begun", *opening[1:]]
        rules.append(f"BEFORE: {_NOT_IN_THOUGHT if thoughts else 'TEXT'}")
    elif not trigger and PYTHON_TAG in special:
        opening = [f"<[{special[PYTHON_TAG]}]>?"]
    if free and answer is not None:
        rules += ["start: answer | calls", f"answer: {_json_rule(answer, strict=True)}"]
    elif free:
        # without a trigger a call is recognized by its brace
        rules += (
            ["start: TEXT | calls", "TEXT: /(.|\\n)*/"]
            if form.trigger
            else ["start: (TEXT | calls)?", "TEXT: /\\s*[^\\s{](.|\\n)*/"]
        )
    else:
        rules.append("start: calls")
    more = [f"({' '.join([*written(form.between), 'call'])})*"] if several and form.many else []
    rules.append(f"calls: {' '.join([*opening, 'call', *more, *written(form.closing)])}")
    # all names share the text before them, so the lexer need not choose one of them too early
    rules.append(f"call: {' '.join([*written([form.before]), 'named', *written([form.after])])}")
    rules.append("named: " + " | ".join(f"named_{index}" for index in range(len(functions))))
    for index, function in enumerate(functions):
        middle = (
            [json.dumps(function["name"]), *written([form.middle])]
            if form.middle in special
            else [json.dumps(function["name"] + form.middle)]
        )
        rules.append(f"named_{index}: {' '.join([*middle, f'arguments_{index}'])}")
        rules.append(f"arguments_{index}: {_json_rule(function['parameters'], bool(function.get('strict')), patterns)}")
    try:
        return Grammar(kind="lark", text="\n".join(rules) + "\n")
    except ValidationError:
        raise invalid(f"the schemas of the tools come to a grammar of more than {LONGEST_GRAMMAR} characters", "tools") from None
