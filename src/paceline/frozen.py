"""Frozen: a dataclass whose fields are never assigned to after construction, for objects that every step creates.

`dataclass(frozen=True)` enforces that at run time, field by field and at construction too, which takes four times as long as the
construction itself. Here the type checker enforces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True)
def frozen(kind: type[Kind]) -> type[Kind]:
    """Class decorator for such a dataclass, which is hashed by its fields."""
    return dataclass(unsafe_hash=True)(kind)
