"""Options for the grammar of an answer, which several commands share, and the grammar made from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from paceline.cli.inputs import text_of_file
from paceline.cli.options import path_option, sampling_params
from paceline.cli.terminal import fail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.params import Grammar, SamplingParams

JsonSchema = Annotated[Path | None, path_option("--json-schema", "A file with a JSON schema that the answer follows.")]
Regex = Annotated[str | None, typer.Option("--regex", help="A regular expression that the whole answer matches.")]
Lark = Annotated[Path | None, path_option("--lark", "A file with a grammar that the answer follows, in llguidance's Lark.")]
_LARGEST_BYTES = 1 << 20
"""Largest file of a grammar: what a grammar may have, in characters of four bytes."""


_SAMPLED = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "seed",
)


def answer_params(given: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters of a command with all of their options. given: the command's arguments by name."""
    grammar = grammar_of(given["json_schema"], given["regex"], given["lark"])
    return sampling_params(**{name: given[name] for name in _SAMPLED}, stop=tuple(given["stop"] or ()), grammar=grammar)


def grammar_of(json_schema: Path | None, regex: str | None, lark: Path | None) -> Grammar | None:
    """The grammar that one of these options gives; None where none of them is given."""
    if sum(given is not None for given in (json_schema, regex, lark)) > 1:
        fail("an answer follows one of --json-schema, --regex and --lark: leave the others out")
    if json_schema is not None:
        return _grammar("json_schema", text_of_file(json_schema, _LARGEST_BYTES, "a schema"))
    if lark is not None:
        return _grammar("lark", text_of_file(lark, _LARGEST_BYTES, "a grammar"))
    return None if regex is None else _grammar("regex", regex)


def _grammar(kind: Literal["json_schema", "regex", "lark"], text: str) -> Grammar:
    from pydantic import ValidationError

    from paceline.errors import validators_words
    from paceline.params import Grammar

    try:
        return Grammar(kind=kind, text=text)
    except ValidationError as error:
        fail(f"--{kind.replace('_', '-')}: {validators_words(error.errors()[0]['msg']).lower()}")
