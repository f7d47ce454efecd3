"""Spec strings: how every interface names a method and its parts.

`name:argument,option=value` is a method; `a+b` merges the trees of two drafters, `a^b` cascades them (a drafts for b), `x@y`
holds x's draft model in weight format y. `@` binds tightest, then `^`, then `+`. A value that contains one of these signs, a
comma or an equals sign goes in double quotes: `model:"runs/a+b"`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from paceline.errors import PacelineError, validators_words
from paceline.registry import suggestion


class SpecError(PacelineError):
    """A spec string that cannot be understood or built; the message is one sentence for the user."""


@dataclass(frozen=True)
class Method:
    """One method: its name, its arguments by place, and its options by name."""

    name: str
    arguments: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Combination:
    """Two or more specs joined by one sign: "+" (merge), "^" (cascade) or "@" (weight format)."""

    sign: str
    parts: tuple[Spec, ...]


Spec = Method | Combination

_TOKEN = re.compile(r'"([^"]*)"|([+^@])|([^"+^@]+)')
_ARGUMENT = re.compile(r'((?:[^,"]|"[^"]*")*)(?:,|$)')


def parse(text: str) -> Spec:
    """Read a spec string. Raises SpecError where it is malformed, or no string at all."""
    if not isinstance(text, str):
        raise SpecError(f"a spec is a text such as 'ngram' or 'none', not {text!r}")
    if text.count('"') % 2:
        raise SpecError(f"the spec '{text}' has an unclosed quote")
    return _split(text, "+^@")


def methods_of(spec: Spec) -> list[Method]:
    """The methods that a spec is put together from, in its order."""
    return [spec] if isinstance(spec, Method) else [method for part in spec.parts for method in methods_of(part)]


def _split(text: str, signs: str) -> Spec:
    if not signs:
        return _method(text)
    pieces, piece = [], ""
    for match in _TOKEN.finditer(text):
        if match.group(2) == signs[0]:
            pieces.append(piece)
            piece = ""
        else:
            piece += match.group(0)
    pieces.append(piece)
    if any(not piece.strip() for piece in pieces):
        if len(pieces) > 1:
            raise SpecError(f"the spec '{text}' lacks a method beside its '{signs[0]}'")
        raise SpecError("a spec is empty: write what drafts, such as 'ngram', or 'none' for nothing")
    parts = tuple(_split(piece.strip(), signs[1:]) for piece in pieces)
    return parts[0] if len(parts) == 1 else Combination(signs[0], parts)


def _method(text: str) -> Method:
    name, colon, rest = text.partition(":")
    if not name.strip():
        raise SpecError(f"the spec '{text}' has no name before its ':'")
    if colon and not rest.strip():
        # such as from a shell variable that is not set
        raise SpecError(f"the spec '{text}' has nothing behind its ':'")
    if "," in name and '"' not in name:
        raise SpecError(f"'{text}' has a ',' where one method is named: name others by '+', or each by an option of its own")
    arguments: list[str] = []
    options: dict[str, str] = {}
    # with a comma behind each part, the pattern also matches the empty string behind the last comma
    for part in _ARGUMENT.findall(rest + ",")[:-1] if rest.strip() else ():
        option, equals, value = part.partition("=")
        option = option.strip()
        if not part.strip():
            raise SpecError(f"the spec '{text}' has an empty argument")
        if equals and '"' not in option:
            if option in options:
                raise SpecError(f"the spec '{text}' gives '{option}' twice")
            options[option] = _unquoted(value)
        elif options:
            raise SpecError(f"in the spec '{text}' the argument '{part}' stands behind an option")
        else:
            arguments.append(_unquoted(part))
    return Method(_unquoted(name), tuple(arguments), options)


def _unquoted(text: str) -> str:
    return text.strip().replace('"', "")


class NoOptions(BaseModel):
    """The options of a method that has none."""


Options = TypeVar("Options", bound=BaseModel)


def bind(method: Method, options: type[Options]) -> Options:
    """Fill a method's options from its spec: arguments by the order of the fields, options by name.

    Raises SpecError naming the nearest option or all of them, or the field and what is wrong with its value.
    """
    fields = list(options.model_fields)
    if len(method.arguments) > len(fields):
        most = f"at most {len(fields)} arguments, not {len(method.arguments)}" if fields else "no options"
        raise SpecError(f"'{method.name}' takes {most}")
    values: dict[str, str] = dict(zip(fields, method.arguments, strict=False))
    for name, value in method.options.items():
        if name not in fields:
            raise SpecError(f"'{method.name}' has no option '{name}'; {suggestion(name, fields)}")
        if name in values:
            raise SpecError(f"'{method.name}' is given '{name}' twice")
        values[name] = value
    try:
        return options.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        message = validators_words(first["msg"])
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise SpecError(f"'{method.name}' needs {place}") from None
        if not place:
            raise SpecError(f"'{method.name}' cannot be built: {message}") from None
        raise SpecError(f"'{method.name}' cannot use {place}={first.get('input')!r}: {message.lower()}") from None
