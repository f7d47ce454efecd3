"""Depths: what becomes of the levels that costly drafters are granted, learnt by drafter and depth.

Known before a draft is made, whatever its confidence will be: how likely a level is drafted, and how likely it then comes true. A
level that is not drafted because the draft ended before it (`stopping`) brings nothing and costs nothing, and counts as that.

Where a draft is made matters: how an answer begins is easily guessed, and so is what a look-up finds; what it does not find is
what is hard to guess.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
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
_COUNTED_TOGETHER = 16
"""Drafts that are counted at once, at most."""


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


class _Draft(NamedTuple):
    """What came of one draft, in levels: those that were granted and drafted, those that came true, those of which the text says
    whether they did, and of these those that were drafted."""

    granted: int
    drafted: int
    right: int
    told: int
    judged: int


@dataclass(slots=True)
class _Place:
    """What is known of one drafter at one place: its levels, and the drafts that they do not count yet."""

    levels: list[_Level] = field(default_factory=list)
    fresh: list[_Draft] = field(default_factory=list)


class _Rates(NamedTuple):
    """By level."""

    drafted: list[float]
    brought: list[float]
    right: list[float]


class Depths:
    """By costly drafter and by where it drafts; a level that was never granted is taken to go on as those before it went, and a
    place where nothing ever was to be like the others."""

    def __init__(self) -> None:
        self._places: dict[str, dict[Where, _Place]] = {}
        self._known: dict[str, dict[Where, _Rates]] = {}
        """Part -> place -> its rates, until it is seen at work again."""

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
        known = self._known.get(part, {}).get(where)
        if known is None:
            places = self._places.get(part, {})
            # how an answer begins says the least of the others
            counted = (self._counted(part, place) for place in (where, *reversed(Where)) if place in places)
            levels = next(filter(None, counted), [])
            known = _Rates(
                [level.drafted.rate for level in levels],
                [level.brought.rate for level in levels],
                [level.right.rate for level in levels],
            )
            self._known.setdefault(part, {})[where] = known
        return known

    def observe(self, part: str, granted: int, tree: DraftTree, emitted: Many[int], where: Where) -> None:
        """See what came of one draft that might have had `granted` levels. emitted: what followed its root."""
        places = self._places.setdefault(part, {})
        place = places.get(where) or places.setdefault(where, _Place())
        granted, drafted, right = min(granted, DEEPEST), tree.deepest, _right(tree, emitted)
        told = min(right + 1, len(emitted), granted)
        # decisions stand for several steps: to count all of their drafts at once takes a fraction of the time
        place.fresh.append(_Draft(granted, min(drafted, granted), min(right, granted), told, min(told, drafted)))
        if len(place.fresh) >= _COUNTED_TOGETHER:
            self._counted(part, where)
        self._known.pop(part, None)

    def _counted(self, part: str, where: Where) -> list[_Level]:
        """The levels of a place, all its drafts counted."""
        place = self._places[part][where]
        if not place.fresh:
            return place.levels
        fresh, place.fresh = place.fresh, []
        deepest = max(draft.granted for draft in fresh)
        if len(place.levels) < deepest:
            known = zip(*(rates(part, deepest, where) for rates in (self.drafted, self.brought, self.right)), strict=True)
            for rates in list(known)[len(place.levels) :]:
                place.levels.append(_Level(*(Share(_PRIOR * rate, _PRIOR, _MEMORY) for rate in rates)))
        granted, drafted, right, told, judged = (_at_least(lengths, deepest) for lengths in zip(*fresh, strict=True))
        for level, trials, there, hits, parents, looked_at in zip(
            place.levels, granted, drafted, right, told, judged, strict=False
        ):
            level.drafted.see(there, trials)
            level.brought.see(hits, parents)
            level.right.see(hits, looked_at)
        self._known.pop(part, None)
        return place.levels


def _to(depth: int, rates: list[float]) -> list[float]:
    """Rates of so many levels: the last one, where there are fewer."""
    return rates[:depth] + [rates[-1] if rates else _FIRST] * (depth - len(rates))


def _at_least(lengths: Many[int], deepest: int) -> list[int]:
    """How many of some lengths are 1 or more, 2 or more, and so on."""
    counts = [0] * (deepest + 1)
    for length in lengths:
        counts[length] += 1
    return list(accumulate(reversed(counts[1:])))[::-1]


def _right(tree: DraftTree, emitted: Many[int]) -> int:
    """How many levels of a tree came true."""
    if tree.is_chain:
        right = 0
        for drafted, token in zip(tree.tokens[1 : tree.candidates], emitted, strict=False):
            if drafted != token:
                break
            right += 1
        return right
    node: int | None = 0
    for count, token in enumerate(emitted):
        node = tree.children[node].get(token)
        if node is None:
            return count
    return len(emitted)
