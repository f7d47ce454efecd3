"""Write docs/methods.md from the docstrings of the methods; `--check` fails if the file is out of date."""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path

from paceline import spec
from paceline.bench.markdown import anchor, table
from paceline.methods import FAMILIES, Option, compositions, default_of, described, options
from paceline.tree import Proposal

TARGET = Path(__file__).parent / "methods.md"
SHOWN = {
    "drafters": ("source", "proposals", "taps", "branching", "trained", "cost"),
    "verifiers": ("source", "exactness", "lossless"),
    "policies": ("source",),
    "caches": ("branching",),
}
_WORDS = "architecture.md#the-words"
_KINDS = "architecture.md#kinds-of-proposals-and-what-a-verifier-makes-of-them"
_BRANCHING = "architecture.md#models-come-from-transformers"
DEFINED = {
    **{kind.name: _KINDS for kind in Proposal},
    **dict.fromkeys(("TREE", "CHAIN", "REPLAY"), _BRANCHING),
    **dict.fromkeys(("proposals", "exactness"), _KINDS),
    "branching": _BRANCHING,
    "taps": _WORDS,
}
"""Links to the explanations of words in the fields."""
_WORDS_OF_A_NAME = 3
"""Most words before a colon that count as a method's name."""
_WORD = re.compile(rf"\b({'|'.join(DEFINED)})\b")


def page() -> str:
    """The whole page: how specs are written, and one section per family with an entry per method."""
    lines = ["# Methods", "", "Generated from the modules' docstrings by `make docs`; edit those, not this page.", ""]
    lines += ["## Specs", "", *_paragraphs(spec.__doc__ or ""), ""]
    lines += [
        "Below, options stand in the order in which arguments fill them, each with its default and the values it takes.",
        "`paceline methods --json` says all this to programs.",
        "",
    ]
    lines += _overview()
    for row in compositions():
        lines += _entry(row, [], SHOWN["drafters"])
    for family, registry in FAMILIES.items():
        rows = described(registry)
        lines += [f"## {family.capitalize()}", ""]
        for row in rows:
            lines += _entry(row, options(registry[row["name"]].load()), SHOWN[family])
    lines += [f"[{word}]: {place}" for word, place in DEFINED.items()]
    return "\n".join(lines).rstrip() + "\n"


def _overview() -> list[str]:
    """Tables of all drafters, and of all verifiers and policies, with links to their entries."""
    composed, (drafters, verifiers, policies) = (
        compositions(),
        (described(FAMILIES[f]) for f in ("drafters", "verifiers", "policies")),
    )
    links = _links([row["name"] for row in (*composed, *drafters, *verifiers, *policies)])
    return [
        *("## Overview", ""),
        *table(
            ("drafter", "what it proposes", "needs training"),
            [(links[row["name"]], _brief(row), row.get("trained", "")) for row in (*drafters, *composed)],
        ),
        *table(
            ("verifier", "what it accepts", "keeps of plain decoding"),
            [(links[row["name"]], _brief(row), row["exactness"]) for row in verifiers],
        ),
        *table(("policy", "how much is drafted"), [(links[row["name"]], _brief(row)) for row in policies]),
    ]


def _links(names: list[str]) -> dict[str, str]:
    """Name -> link to its entry. names: in the order of the page, since GitHub numbers repeated anchors."""
    seen = Counter[str]()
    found: dict[str, str] = {}
    for name in names:
        place = anchor(name)
        found[name] = f"[`{name}`](#{place}-{seen[place]})" if seen[place] else f"[`{name}`](#{place})"
        seen[place] += 1
    return found


def _brief(row: dict[str, str]) -> str:
    """The first line of a docstring, without the name of the method in front of it."""
    name, _, said = row["summary"].rstrip(".").partition(": ")
    brief = said if said and len(name.split()) <= _WORDS_OF_A_NAME else row["summary"].rstrip(".")
    return (brief[0].upper() + brief[1:]).replace("|", "\\|")


def _entry(row: dict[str, str], chosen: list[Option], shown: tuple[str, ...]) -> list[str]:
    lines = [f"### `{row['name']}`", "", row["summary"], ""]
    if row["description"]:
        lines += [row["description"], ""]
    if chosen:
        lines += [f"`{row['name']}:{','.join(option.name for option in chosen)}`", ""]
        for meaning, group in groupby(chosen, lambda option: option.meaning):
            several = list(group)
            said = meaning.partition(": ")[2] if len(several) > 1 else meaning
            lines.append(f"- {', '.join(map(_shown, several))}: {said}")
        lines.append("")
    if missing := [field for field in shown if field not in row and shown is not SHOWN["caches"]]:
        sys.exit(f"the docstring of '{row['name']}' lacks the field '{missing[0].capitalize()}:'")
    fields = [f"- {_linked(field)}: {_linked(row[field])}" for field in shown if field in row]
    return [*lines, *fields, *[""][: len(fields)]]


def _shown(option: Option) -> str:
    """An option with its default and values, such as "`max` (6; 1 to 32)"."""
    return f"`{option.name}` ({default_of(vars(option))}; {option.values})"


def _linked(text: str) -> str:
    return _WORD.sub(r"[\1]", text)


def _paragraphs(text: str) -> list[str]:
    """A docstring's text with one line per paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).splitlines()


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            sys.exit("docs/methods.md is out of date: run `make docs`")
    else:
        TARGET.write_text(text, encoding="utf-8")
