"""Frozen: a dataclass to whose fields nobody assigns, for what every step makes anew.

`dataclass(frozen=True)` watches over that field by field, when one is made too, which takes four times as long as making it. Here
the type checker does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True)
def frozen(kind: type[Kind]) -> type[Kind]:
    """Make a class such a dataclass, which is hashed by its fields."""
    return dataclass(unsafe_hash=True)(kind)
