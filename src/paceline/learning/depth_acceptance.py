"""DepthAcceptance: per costly drafter and depth, the probability that a granted level is drafted, and that it is then accepted.

These are known before a draft is made, whatever its confidences will be. A level that is not drafted because the draft ended
before it (`stopping`) adds no token and costs no time, and counts as not accepted.

The rates depend on where a draft is made: the beginning of an answer is easily guessed, and so is what a lookup finds; where a
lookup finds nothing the text is hard to guess.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from paceline.learning.acceptance import judged
from paceline.learning.decayed_rate import DecayedRate
from paceline.stopping import DEEPEST
from paceline.tree import DraftTree

_FIRST = 0.6
"""Acceptance rate that is assumed of a drafter before it was observed."""
_PRIOR = 4.0
"""How many observations the prior counts for."""
_MEMORY = 80.0
"""Observations after which older ones decay: rates must follow from one kind of request to the next."""
_COUNTED_TOGETHER = 16
"""Drafts that are collected before they are counted, at most."""


class DraftContext(StrEnum):
    """Where in the text a draft is made."""

    BEGINNING = "beginning"
    """Before the first token of an answer."""
    BESIDE = "beside"
    """Within the answer, where a lookup found something."""
    ALONE = "alone"
    """Within the answer, where no lookup found anything."""

    @classmethod
    def of(cls, generated_tokens: int, found: bool) -> DraftContext:
        """The context of a draft after so many tokens of the answer. found: whether a lookup found something."""
        return (cls.BESIDE if found else cls.ALONE) if generated_tokens else cls.BEGINNING


@dataclass(slots=True)
class _Level:
    """Rates of one depth. drafted: of all granted levels, those that were drafted. brought: of those whose parent was accepted,
    those that were drafted and accepted. right: of those drafted whose parent was accepted, those accepted."""

    drafted: DecayedRate
    brought: DecayedRate
    right: DecayedRate


class _Draft(NamedTuple):
    """The outcome of one draft, in levels: granted, drafted, accepted; told, those of which the text shows whether a drafted
    token would have been accepted; judged, those of them that were drafted."""

    granted: int
    drafted: int
    right: int
    told: int
    judged: int


@dataclass(slots=True)
class _Place:
    """One drafter in one context: the rates of its levels, and drafts that are not counted in them yet."""

    levels: list[_Level] = field(default_factory=list)
    fresh: list[_Draft] = field(default_factory=list)


class _Rates(NamedTuple):
    """The rates of `_Level`, one per depth from 1 on."""

    drafted: list[float]
    brought: list[float]
    right: list[float]


class DepthAcceptance:
    """Rates by drafter and context. A depth that was never granted is assumed to be like the one before it, and a context that
    was never observed like the others."""

    def __init__(self) -> None:
        self._places: dict[str, dict[DraftContext, _Place]] = {}
        self._known: dict[str, dict[DraftContext, _Rates]] = {}
        """Drafter -> context -> its rates, until its next draft is observed."""

    def brought(self, drafter: str, depth: int, where: DraftContext) -> list[float]:
        """Per depth up to `depth`, the probability that a granted level is drafted and accepted, given that its parent was."""
        return _to(depth, self._rates(drafter, where).brought)

    def right(self, drafter: str, depth: int, where: DraftContext) -> list[float]:
        """Per depth up to `depth`, the probability that a drafted level is accepted, given that its parent was."""
        return _to(depth, self._rates(drafter, where).right)

    def drafted(self, drafter: str, depth: int, where: DraftContext) -> list[float]:
        """Per depth up to `depth`, the probability that a granted level is drafted."""
        shares = self._rates(drafter, where).drafted[:depth]
        for chance in self.brought(drafter, depth, where)[len(shares) :]:
            # a draft continues about as often as it is accepted
            shares.append(shares[-1] * chance if shares else 1.0)
        return shares

    def _rates(self, drafter: str, where: DraftContext) -> _Rates:
        known = self._known.get(drafter, {}).get(where)
        if known is None:
            places = self._places.get(drafter, {})
            # the beginning of an answer says the least about the other contexts
            counted = (self._counted(drafter, place) for place in (where, *reversed(DraftContext)) if place in places)
            levels = next(filter(None, counted), [])
            known = _Rates(
                [level.drafted.rate for level in levels],
                [level.brought.rate for level in levels],
                [level.right.rate for level in levels],
            )
            self._known.setdefault(drafter, {})[where] = known
        return known

    def observe(self, drafter: str, granted: int, tree: DraftTree, emitted: Many[int], where: DraftContext) -> None:
        """Observe one draft that was granted so many levels. emitted: the tokens that followed its root."""
        places = self._places.setdefault(drafter, {})
        place = places.get(where) or places.setdefault(where, _Place())
        granted, drafted = min(granted, DEEPEST), tree.deepest
        right = sum([hit for _, hit in judged(tree, 0, emitted)[0]])
        told = min(right + 1, len(emitted), granted)
        # decisions hold for several steps: counting their drafts together takes a fraction of the time
        place.fresh.append(_Draft(granted, min(drafted, granted), min(right, granted), told, min(told, drafted)))
        if len(place.fresh) >= _COUNTED_TOGETHER:
            self._counted(drafter, where)
        self._known.pop(drafter, None)

    def _counted(self, drafter: str, where: DraftContext) -> list[_Level]:
        """The levels of a context, with all drafts counted."""
        place = self._places[drafter][where]
        if not place.fresh:
            return place.levels
        fresh, place.fresh = place.fresh, []
        deepest = max(draft.granted for draft in fresh)
        if len(place.levels) < deepest:
            known = zip(*(rates(drafter, deepest, where) for rates in (self.drafted, self.brought, self.right)), strict=True)
            for rates in list(known)[len(place.levels) :]:
                place.levels.append(_Level(*(DecayedRate(_PRIOR * rate, _PRIOR, _MEMORY) for rate in rates)))
        granted, drafted, right, told, judged = (_at_least(lengths, deepest) for lengths in zip(*fresh, strict=True))
        for level, trials, there, hits, parents, looked_at in zip(
            place.levels, granted, drafted, right, told, judged, strict=False
        ):
            level.drafted.see(there, trials)
            level.brought.see(hits, parents)
            level.right.see(hits, looked_at)
        self._known.pop(drafter, None)
        return place.levels


def _to(depth: int, rates: list[float]) -> list[float]:
    """The rates of the first `depth` levels; the last rate is repeated where there are fewer."""
    return rates[:depth] + [rates[-1] if rates else _FIRST] * (depth - len(rates))


def _at_least(lengths: Many[int], deepest: int) -> list[int]:
    """For each length from 1 to `deepest`, how many of `lengths` are at least that."""
    counts = [0] * (deepest + 1)
    for length in lengths:
        counts[length] += 1
    return list(accumulate(reversed(counts[1:])))[::-1]
