"""Machines: names of machines in headings and plots. Clouds use one name for processors of several generations."""

from __future__ import annotations

import re
from typing import Any

_ZEN_5, _ZEN_3_OR_4 = "26", "25"
"""AMD's family numbers; there are no records of older families."""
_ZEN_4_MODELS = (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0))
_WIDE, _NARROW = "avx512", "avx2"


def machine_name(machine: dict[str, Any]) -> str:
    """The processor, with its generation if its family and model show it, and a note if it lacks AVX-512. Older records have only
    the processor."""
    name = re.sub(r"\((?:R|TM)\)|\bProcessor\b", "", machine["processor"])
    name = " ".join(name.split()) or machine["processor"]
    family, instructions = machine.get("family") or (), machine.get("instructions") or ()
    parts = []
    if name.startswith("AMD") and "Zen" not in name and (generation := _generation(*family[:2])):
        parts.append(generation)
    if _NARROW in instructions and not any(name.startswith(_WIDE) for name in instructions):
        parts.append("AVX2 only")
    return f"{name} ({', '.join(parts)})" if parts else name


def _generation(family: str = "", model: str = "") -> str:
    if family == _ZEN_5:
        return "Zen 5"
    if family == _ZEN_3_OR_4 and model.isdigit():
        return "Zen 4" if any(int(model) in models for models in _ZEN_4_MODELS) else "Zen 3"
    return ""
