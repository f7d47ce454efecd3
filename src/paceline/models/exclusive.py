"""Exclusive: whether the alternatives of a `oneOf` exclude each other, as far as types, tags and required properties show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Many
from dataclasses import dataclass
from itertools import combinations
from typing import Any

MOST_ALTERNATIVES = 32
"""Most alternatives that are compared with each other; more may hold of the same value."""


@dataclass(frozen=True)
class Allowed:
    """What a schema allows, as far as it is compared. types: None for all. values: those that it lists, as JSON; None for all."""

    types: frozenset[str] | None
    values: frozenset[str] | None

    @classmethod
    def by(cls, schema: Any) -> Allowed:
        if not isinstance(schema, Mapping):
            return cls(None, None)
        given = schema.get("type")
        kinds = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        # an integer is a number
        types = frozenset("number" if kind == "integer" else str(kind) for kind in kinds) or None
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        values = frozenset(json.dumps(value, sort_keys=True) for value in listed) if isinstance(listed, list) else None
        return cls(types, values)

    def meets(self, other: Allowed) -> bool:
        """Whether a value may be allowed by both."""
        types = self.types is None or other.types is None or not self.types.isdisjoint(other.types)
        return types and (self.values is None or other.values is None or not self.values.isdisjoint(other.values))


@dataclass(frozen=True)
class Alternative:
    """An alternative of a `oneOf`. place: its JSON pointer. required: properties that it requires; tags: those of them that it
    lists, with what they may be. listed: all that it lists, if no others are allowed once it is closed; else None."""

    place: str
    allowed: Allowed
    required: frozenset[str]
    tags: Mapping[str, Allowed]
    listed: frozenset[str] | None

    def excludes(self, other: Alternative) -> bool:
        """Whether no value is valid for both, closed or not."""
        if not self.allowed.meets(other.allowed):
            return True
        # a value that is no object needs no property
        tags = self.tags.keys() & other.tags.keys() if self._are_objects(other) else ()
        return any(not self.tags[name].meets(other.tags[name]) for name in tags)

    def excludes_closed(self, other: Alternative) -> bool:
        """Whether no value that is valid for one of both, when both are closed, is valid for the other as it is."""
        return self._are_objects(other) and self._lacks(other) and other._lacks(self)

    def _are_objects(self, other: Alternative) -> bool:
        return self.allowed.types == other.allowed.types == {"object"}

    def _lacks(self, other: Alternative) -> bool:
        """Whether this one, closed, never has some property that the other requires."""
        return self.listed is not None and not other.required <= self.listed


class Comparisons:
    """Compares alternatives, each pair once, however many `oneOf` refer to it."""

    def __init__(self) -> None:
        self._needs_closing: dict[tuple[str, str], bool | None] = {}

    def relied_on(self, alternatives: Many[Alternative]) -> set[str] | None:
        """Places of the alternatives that must be closed so that no value is valid for two; None if one may be even then."""
        if len(alternatives) > MOST_ALTERNATIVES:
            return None
        found = set[str]()
        for one, other in combinations(alternatives, 2):
            both = one.place, other.place
            if both not in self._needs_closing:
                needs = not one.excludes(other)
                self._needs_closing[both] = None if needs and not one.excludes_closed(other) else needs
            if (needs := self._needs_closing[both]) is None:
                return None
            if needs:
                found.update(both)
        return found
