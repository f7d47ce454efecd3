"""Depths: what becomes of the levels that costly drafters are granted, learnt by drafter and depth.

Known before a draft is made, whatever its confidence will be: how likely a level is drafted, and how likely it then comes true. A
level that is not drafted because the draft ended before it (`stopping`) brings nothing and costs nothing, and counts as that.

Where a draft is made matters: how an answer begins is easily guessed, and so is what a look-up finds; what it does not find is
what is hard to guess.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from paceline.learning.share import Share
from paceline.stopping import DEEPEST
from paceline.tree import DraftTree

_FIRST = 0.6
"""How likely a token of a drafter is that was never seen at work."""
_PRIOR = 4.0
"""How many observations that counts for."""
_MEMORY = 80.0
"""Observations remembered before older ones fade: they are to follow from one kind of request to the next."""


class Where(StrEnum):
    """Where a draft is made."""

    BEGINNING = "beginning"
    """Before the first token of an answer."""
    BESIDE = "beside"
    """Beside what a look-up found."""
    ALONE = "alone"

    @classmethod
    def of(cls, generated_tokens: int, found: bool) -> Where:
        """generated_tokens: of the answer so far. found: whether a look-up found something."""
        return (cls.BESIDE if found else cls.ALONE) if generated_tokens else cls.BEGINNING


@dataclass(slots=True)
class _Level:
    """Of all that were granted: drafted. Of those whose parent came true: brought, which is drafted and right. Of those drafted
    whose parent came true: right."""

    drafted: Share
    brought: Share
    right: Share


class _Rates(NamedTuple):
    """By level."""

    drafted: list[float]
    brought: list[float]
    right: list[float]


class Depths:
    """By costly drafter and by where it drafts; a level that was never granted is taken to go on as those before it went, and a
    place where nothing ever was to be like the others."""

    def __init__(self) -> None:
        self._levels: dict[str, dict[Where, list[_Level]]] = {}
        self._known: dict[tuple[str, Where], _Rates] = {}
        """Part and place -> its rates, until it is seen at work again."""

    def brought(self, part: str, depth: int, where: Where) -> list[float]:
        """Per depth, how likely a granted level is drafted and right once those before it were."""
        return _to(depth, self._rates(part, where).brought)

    def right(self, part: str, depth: int, where: Where) -> list[float]:
        """Per depth, how likely a drafted level is right once those before it were."""
        return _to(depth, self._rates(part, where).right)

    def drafted(self, part: str, depth: int, where: Where) -> list[float]:
        """Per depth, how likely a granted level is drafted."""
        shares = self._rates(part, where).drafted[:depth]
        for chance in self.brought(part, depth, where)[len(shares) :]:
            # a draft goes on about as often as it comes true
            shares.append(shares[-1] * chance if shares else 1.0)
        return shares

    def _rates(self, part: str, where: Where) -> _Rates:
        known = self._known.get((part, where))
        if known is None:
            places = self._levels.get(part, {})
            # how an answer begins says the least of the others
            levels = next((places[place] for place in (where, *reversed(Where)) if place in places), [])
            known = self._known[part, where] = _Rates(
                [level.drafted.rate for level in levels],
                [level.brought.rate for level in levels],
                [level.right.rate for level in levels],
            )
        return known

    def observe(self, part: str, granted: int, tree: DraftTree, emitted: Many[int], where: Where) -> None:
        """See what came of one draft that might have had `granted` levels. emitted: what followed its root."""
        deepest, deeper = tree.deepest, min(granted, DEEPEST)
        levels = self._levels.setdefault(part, {}).setdefault(where, [])
        if len(levels) < deeper:
            known = zip(*(rates(part, deeper, where) for rates in (self.drafted, self.brought, self.right)), strict=True)
            for rates in list(known)[len(levels) :]:
                levels.append(_Level(*(Share(_PRIOR * rate, _PRIOR, _MEMORY) for rate in rates)))
        right = _right(tree, emitted)
        for depth, level in enumerate(levels[:granted], 1):
            level.drafted.see(depth <= deepest)
            if depth <= min(right + 1, len(emitted)):
                level.brought.see(depth <= right)
                if depth <= deepest:
                    level.right.see(depth <= right)
        for place in Where:
            self._known.pop((part, place), None)


def _to(depth: int, rates: list[float]) -> list[float]:
    """Rates of so many levels: the last one, where there are fewer."""
    return rates[:depth] + [rates[-1] if rates else _FIRST] * (depth - len(rates))


def _right(tree: DraftTree, emitted: Many[int]) -> int:
    """How many levels of a tree came true."""
    if tree.is_chain:
        pairs = zip(tree.tokens[1 : tree.candidates], emitted, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    node: int | None = 0
    for count, token in enumerate(emitted):
        node = tree.children[node].get(token)
        if node is None:
            return count
    return len(emitted)
