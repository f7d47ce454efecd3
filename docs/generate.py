"""Write docs/methods.md from what the methods say of themselves; `--check` fails where the file is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.methods import FAMILIES, described

TARGET = Path(__file__).parent / "methods.md"
SHOWN = {
    "drafters": ("source", "proposals", "taps", "branching", "trained", "cost"),
    "verifiers": ("source", "exactness", "lossless"),
    "policies": ("source",),
    "approximations": ("source",),
    "caches": ("branching",),
}


def page() -> str:
    """The whole page, one section per family, one entry per method."""
    lines = ["# Methods", "", "Generated from the modules' docstrings by `make docs`; edit those, not this page.", ""]
    for family, registry in FAMILIES.items():
        rows = described(registry)
        if not rows:
            continue
        lines += [f"## {family.capitalize()}", ""]
        for row in rows:
            lines += [f"### `{row['name']}`", "", row["summary"], ""]
            if row["description"]:
                lines += [row["description"], ""]
            lines += [f"- {field}: {row[field]}" for field in SHOWN[family] if field in row]
            lines += [""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            sys.exit("docs/methods.md is out of date: run `make docs`")
    else:
        TARGET.write_text(text, encoding="utf-8")
