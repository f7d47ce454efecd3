"""What the methods say of themselves: the fields of their modules' docstrings, read without building anything."""

from __future__ import annotations

import re
from itertools import pairwise

from paceline.registry import APPROXIMATIONS, CACHES, DRAFTERS, POLICIES, VERIFIERS, Registry

FAMILIES: dict[str, Registry] = {
    "drafters": DRAFTERS,
    "verifiers": VERIFIERS,
    "policies": POLICIES,
    "approximations": APPROXIMATIONS,
    "caches": CACHES,
}
_NAMES = "Source|Proposals|Taps|Branching|Trained|Cost|Exactness|Lossless"
_FIELD = re.compile(rf"^({_NAMES}): (.*?)(?=^(?:{_NAMES}): |\Z)", re.MULTILINE | re.DOTALL)


def described(registry: Registry) -> list[dict[str, str]]:
    """Per method its name, its first line, its description, and every `Field: value` of its docstring in lower case."""
    rows = []
    for name, row in registry.items():
        text = row.load().__doc__ or ""
        fields = {key.lower(): " ".join(value.split()) for key, value in _FIELD.findall(text)}
        prose = _FIELD.sub("", text).strip()
        first, _, rest = prose.partition("\n\n")
        rows.append({"name": name, "summary": " ".join(first.split()), "description": _joined(rest), **fields})
    return rows


def _joined(prose: str) -> str:
    """Each paragraph, and each item of a list, on one line."""
    blocks = [block for block in re.split(r"\n\s*\n|\n(?=- )", prose) if block.strip()]
    lines = [" ".join(block.split()) for block in blocks]
    # items of one list stand under each other, and everything else apart
    joints = ["\n" if a.startswith("- ") and b.startswith("- ") else "\n\n" for a, b in pairwise(lines)]
    return "".join(map(str.__add__, lines, [*joints, ""]))
