"""Descriptions of the methods, read without building anything: the fields of their modules' docstrings, their options,
and what their classes declare.

Which kinds of proposals a verifier keeps, and how, is read from its class, so that no text can promise more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import cleandoc
from itertools import pairwise
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from paceline import cascade, compose
from paceline.drafters import merge
from paceline.drafters.base import Drafter
from paceline.models.base import WEIGHTS
from paceline.registry import CACHES, DRAFTERS, POLICIES, VERIFIERS, Registry
from paceline.tree import Proposal
from paceline.verifiers.base import Exactness, Verifier

FAMILIES: dict[str, Registry] = {
    "drafters": DRAFTERS,
    "verifiers": VERIFIERS,
    "policies": POLICIES,
    "caches": CACHES,
}
_COMPOSITIONS = {
    "auto": compose.automatic.__doc__,
    "a+b": merge.__doc__,
    "a^b": cascade.__doc__,
    "x@y": compose.with_weights.__doc__,
}
_NAMES = "Source|Proposals|Taps|Branching|Trained|Cost|Exactness|Lossless"
_FIELD = re.compile(rf"^({_NAMES}): (.*?)(?=^(?:{_NAMES}): |\Z)", re.MULTILINE | re.DOTALL)


def described(registry: Registry) -> list[dict[str, str]]:
    """Per method its name, its first line, its description, and every `Field: value` of its docstring, the field in lower case;
    for a verifier `exactness` and `lossless` come from its class."""
    modules = {name: row.load() for name, row in registry.items()}
    return [
        {**_described(name, module.__doc__), **(_promised(_verifier_class(module)) if registry is VERIFIERS else {})}
        for name, module in modules.items()
    ]


def noted(drafter: Drafter) -> tuple[str, str]:
    """The first line and the source in the docstring of a built drafter's file; "" for what is missing there."""
    module = sys.modules.get(type(drafter).__module__)
    said = _described(drafter.name, module and module.__doc__)
    return said["summary"], said.get("source", "")


def compositions() -> list[dict[str, str]]:
    """As `described`, for the ways to combine specs."""
    return [_described(name, text) for name, text in _COMPOSITIONS.items()]


def composed() -> list[dict[str, Any]]:
    """As `listed` for drafters: with every kind of proposal, since any drafters may be combined."""
    kinds = [*Proposal]
    kept = {name: _least(_verifier_class(verifier.load()), kinds) for name, verifier in VERIFIERS.items()}
    return [{**row, "kinds": [kind.name for kind in kinds], "exactness": kept} for row in compositions()]


def approximations() -> list[dict[str, Any]]:
    """As `listed` for methods: the weight formats, which are no modules."""
    source = next(row["source"] for row in compositions() if row["name"] == "x@y")
    return [{"name": form, "summary": f"Weights held as {form}.", "source": source, "options": []} for form in WEIGHTS]


def listed(family: str) -> list[dict[str, Any]]:
    """The rows of `described`, with structured data added.

    For all methods, options: the fields of `Option`. For drafters, kinds: of their proposals; exactness: by verifier, "text",
    "law" or "none", the least that it keeps for these kinds. For verifiers, kinds: "text" or "law", by the kinds they keep.
    """
    registry = FAMILIES[family]
    rows: list[dict[str, Any]] = []
    for row, method in zip(described(registry), registry.values(), strict=True):
        module = method.load()
        more: dict[str, Any] = {"options": [vars(option) for option in options(module)]}
        if family == "drafters":
            kinds = [Proposal[name] for name in row["proposals"].split(", ")]
            kept = {name: _least(_verifier_class(verifier.load()), kinds) for name, verifier in VERIFIERS.items()}
            more |= {"kinds": [kind.name for kind in kinds], "exactness": kept}
        elif family == "verifiers":
            more["kinds"] = {kind.name: kept.value for kind, kept in _verifier_class(module).exactness.items()}
        rows.append({**row, **more})
    return rows


@dataclass(frozen=True)
class Option:
    """One argument of a method. needed: it cannot be left out. default: as JSON; None for none. values: those it takes, in words.
    meaning: its text in the docstring; where one text is for several options, it begins with their names."""

    name: str
    needed: bool
    default: Any
    values: str
    meaning: str


def options(module: ModuleType) -> list[Option]:
    """The arguments of a method in their order, from its `Options` and their docstring."""
    model: type[BaseModel] | None = getattr(module, "Options", None)
    if model is None:
        return []
    schema = model.model_json_schema().get("properties", {})
    meanings = _meanings(model.__doc__ or "", list(schema))
    return [
        Option(name, field.is_required(), schema[name].get("default"), _values(schema[name]), meanings.get(name, ""))
        for name, field in model.model_fields.items()
    ]


def default_of(option: Mapping[str, Any]) -> str:
    """The default of an option as written in a spec. option: the fields of `Option`."""
    default = option["default"]
    if isinstance(default, bool):
        return "yes" if default else "no"
    if default is None:
        return "needed" if option["needed"] else "none"
    return str(default)


def _meanings(text: str, names: list[str]) -> dict[str, str]:
    """The text for each option in a docstring: `one: text. two, three: text.`"""
    if not names:
        return {}
    name = rf"(?:{'|'.join(names)})"
    _, *parts = re.split(rf"(?:^|(?<=[.;] ))({name}(?:, {name})*): ", " ".join(text.split()))
    found: dict[str, str] = {}
    for head, said in zip(parts[::2], parts[1::2], strict=True):
        said = said.strip().rstrip(".")
        found |= dict.fromkeys(head.split(", "), f"{head}: {said}" if "," in head else said)
    return found


_VALUES = {"boolean": "yes or no", "string": "text"}


def _values(field: Mapping[str, Any]) -> str:
    """The values that an option takes, in words, from its JSON schema."""
    field = next((kind for kind in field.get("anyOf", ()) if kind.get("type") != "null"), field)
    if "enum" in field:
        *others, last = field["enum"]
        return f"{', '.join(others)} or {last}"
    if field["type"] in _VALUES:
        return _VALUES[field["type"]]
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    if low is None:
        return "any number" if high is None else f"up to {high:.12g}"
    low = f"above {low:.12g}" if "exclusiveMinimum" in field else f"{low:.12g}"
    return f"{low} or more" if high is None else f"{low} to {high:.12g}"


def _described(name: str, text: str | None) -> dict[str, str]:
    text = cleandoc(text or "")
    fields = {key.lower(): " ".join(value.split()) for key, value in _FIELD.findall(text)}
    prose = _FIELD.sub("", text).strip()
    first, _, rest = prose.partition("\n\n")
    return {"name": name, "summary": " ".join(first.split()), "description": _joined(rest), **fields}


def _promised(verifier: type[Verifier]) -> dict[str, str]:
    """What the class of a verifier declares, in words."""
    parts: list[str] = []
    for kept in Exactness:
        kinds = [kind.name for kind in Proposal if verifier.exactness.get(kind) is kept]
        if kinds:
            parts.append(f"{kept.value} for {'every kind of proposal' if len(kinds) == len(Proposal) else ', '.join(kinds)}")
    if Exactness.LAW in verifier.exactness.values():
        parts.append("text when greedy")
    if not parts:
        parts.append("none" if verifier.law == Verifier.law else f"none: its own law, {verifier.law}")
    return {"exactness": "; ".join(parts), "lossless": "yes" if verifier.exactness else "no"}


def _verifier_class(module: ModuleType) -> type[Verifier]:
    """The verifier that a module defines."""
    classes = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    return next(kind for kind in classes if issubclass(kind, Verifier))


def _least(verifier: type[Verifier], kinds: list[Proposal]) -> str:
    """The least that a verifier keeps for proposals of these kinds."""
    kept = {verifier.exactness.get(kind) for kind in kinds}
    if None in kept:
        return "none"
    return Exactness.LAW.value if Exactness.LAW in kept else Exactness.TEXT.value


def _joined(prose: str) -> str:
    """Each paragraph, and each item of a list, on one line."""
    blocks = [block for block in re.split(r"\n\s*\n|\n(?=- )", prose) if block.strip()]
    lines = [" ".join(block.split()) for block in blocks]
    # items of one list follow one another, all else is separated by a blank line
    joints = ["\n" if a.startswith("- ") and b.startswith("- ") else "\n\n" for a, b in pairwise(lines)]
    return "".join(map(str.__add__, lines, [*joints, ""]))
