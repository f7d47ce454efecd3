"""Depths: what becomes of the levels that costly drafters are granted, learnt by drafter and depth.

Known before a draft is made, whatever its confidence will be: how likely a level is drafted, and how likely it then comes true. A
level that is not drafted because the draft ended before it (`stopping`) brings nothing and costs nothing, and counts as that.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from paceline.share import Share
from paceline.stopping import DEEPEST
from paceline.tree import DraftTree

_FIRST = 0.6
"""How likely a token of a drafter is that was never seen at work."""
_PRIOR = 4.0
"""How many observations that counts for."""
_MEMORY = 80.0
"""Observations remembered before older ones fade: they are to follow from one kind of request to the next."""


@dataclass
class _Level:
    """Of all that were granted: drafted. Of those whose parent came true: brought, which is drafted and right. Of those drafted
    whose parent came true: right."""

    drafted: Share
    brought: Share = field(default_factory=lambda: Share(_PRIOR * _FIRST, _PRIOR, _MEMORY))
    right: Share = field(default_factory=lambda: Share(_PRIOR * _FIRST, _PRIOR, _MEMORY))


class _Rates(NamedTuple):
    """By level."""

    drafted: list[float]
    brought: list[float]
    right: list[float]


class Depths:
    """By costly drafter; a level that was never granted is taken to go on as those before it went."""

    def __init__(self) -> None:
        self._levels: dict[str, list[_Level]] = {}
        self._known: dict[str, _Rates] = {}
        """Part -> its rates, until it is seen at work again."""

    def brought(self, part: str, depth: int) -> list[float]:
        """Per depth, how likely a granted level is drafted and right once those before it were."""
        return _to(depth, self._rates(part).brought)

    def right(self, part: str, depth: int) -> list[float]:
        """Per depth, how likely a drafted level is right once those before it were."""
        return _to(depth, self._rates(part).right)

    def drafted(self, part: str, depth: int) -> list[float]:
        """Per depth, how likely a granted level is drafted."""
        shares = self._rates(part).drafted[:depth]
        for chance in self.brought(part, depth)[len(shares) :]:
            # a draft goes on about as often as it comes true
            shares.append(shares[-1] * chance if shares else 1.0)
        return shares

    def _rates(self, part: str) -> _Rates:
        known = self._known.get(part)
        if known is None:
            levels = self._levels.get(part, ())
            known = self._known[part] = _Rates(
                [level.drafted.rate for level in levels],
                [level.brought.rate for level in levels],
                [level.right.rate for level in levels],
            )
        return known

    def observe(self, part: str, granted: int, tree: DraftTree, emitted: Many[int]) -> None:
        """See what came of one draft that might have had `granted` levels. emitted: what followed its root."""
        levels, deepest = self._levels.setdefault(part, []), tree.deepest
        if len(levels) < min(granted, DEEPEST):
            for share in self.drafted(part, min(granted, DEEPEST))[len(levels) :]:
                levels.append(_Level(Share(_PRIOR * share, _PRIOR, _MEMORY)))
        right = _right(tree, emitted)
        for depth, level in enumerate(levels[:granted], 1):
            level.drafted.see(depth <= deepest)
            if depth <= min(right + 1, len(emitted)):
                level.brought.see(depth <= right)
                if depth <= deepest:
                    level.right.see(depth <= right)
        self._known.pop(part, None)


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
