"""Acceptance: how often drafts are right, learnt as the text is written, by drafter, depth, confidence and request.

A drafter gives each token a confidence (`DraftTree.confidences`, which may mean anything as long as more is better); here it
becomes a probability. Rates are learnt from the text: it shows whether a node whose parent was right was right too, even where
the target did not verify it, so drafters whose nodes are not verified are judged all the same. A draft that is right as far as
the text goes is judged further as the text grows: else, where estimates for deep nodes cut drafts short, these would never be
corrected.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import islice

import numpy as np

from paceline.learning.decayed_rate import DecayedRate
from paceline.stopping import CLASSES, DEEPEST, LIKELIEST, class_of, shifted
from paceline.tree import DraftTree

_PRIOR = 4.0
"""How many observations a drafter's own confidence counts for."""
_MEMORY = 400.0
"""Observations of a class remembered before older ones fade."""
_FADING = 0.93
"""Decay per step of what a request has shown: some fifteen steps count."""
_DOUBT, _DOUBT_BEFORE = 2.5, 6.0
"""Pseudo-counts of hits and misses, so that a request is taken to differ from others only on evidence: where the confidences of a
draft are known, and before."""


@dataclass(slots=True)
class _Record:
    """One drafter's recent record for one request: nodes that were judged, hits among them, and hits expected."""

    judged: float = 0.0
    hits: float = 0.0
    expected: float = 0.0

    def odds(self, doubt: float) -> float:
        hits = (self.hits + doubt) / (self.expected + doubt)
        misses = (self.judged - self.hits + doubt) / (self.judged - self.expected + doubt)
        return hits / misses


class Acceptance:
    """Probabilities that drafted tokens are right. Requests are known by their key until they are released."""

    def __init__(self) -> None:
        self._rates: dict[str, list[list[DecayedRate | None]]] = {}
        """Source -> by level and class of confidence; None where no token was judged yet."""
        self._chances: dict[str, np.ndarray] = {}
        """Source -> the same rates as a table, for drafters that follow a stopping rule."""
        self._requests: dict[tuple[int, str], _Record] = {}
        self._open: dict[int, dict[str, tuple[DraftTree, int]]] = {}
        """Request -> source -> a draft that the text has followed so far, and the node that it has reached."""

    def rated(self, key: int, tree: DraftTree) -> DraftTree:
        """The tree with the probability that each token is right once its parent is, in place of its drafter's confidence."""
        if len(tree) == 1:
            return tree
        of, odds, rates = "", 1.0, self._rates_of("")
        confidences = [1.0]
        for source, depth, held in islice(zip(tree.sources, tree.depth, tree.confidences, strict=True), 1, None):
            if source != of:
                of, odds, rates = source, self.odds(key, source), self._rates_of(source)
            rate = rates[depth - 1 if depth < DEEPEST else -1][class_of(held)]
            # where no token was judged yet, the drafter's confidence is taken as the probability
            chance = shifted(_word(held) if rate is None else rate.rate, odds)
            confidences.append(chance if chance < LIKELIEST else LIKELIEST)
        return tree.rated(confidences)

    def odds(self, key: int, source: str) -> float:
        """Factor on the usual odds that tokens of a draft are right, for this request."""
        record = self._requests.get((key, source))
        return record.odds(_DOUBT) if record is not None else 1.0

    def odds_before(self, key: int, source: str) -> float:
        """As `odds`, for a draft that is not made yet: differences between requests count only with more evidence."""
        record = self._requests.get((key, source))
        return record.odds(_DOUBT_BEFORE) if record is not None else 1.0

    def chances(self, source: str) -> np.ndarray:
        """float32 [DEEPEST, CLASSES]: how likely a token is right, by level and class of confidence; later updated in place."""
        table = self._chances.get(source)
        if table is None:
            words = (np.arange(CLASSES, dtype=np.float32) + 0.5) / CLASSES
            table = self._chances[source] = np.tile(words, (DEEPEST, 1))
            for level, rates in enumerate(self._rates_of(source)):
                for place, rate in enumerate(rates):
                    if rate is not None:
                        table[level, place] = rate.rate
        return table

    def observe(self, key: int, tree: DraftTree, emitted: Many[int]) -> None:
        """Learn from what was emitted behind the root of a tree, which is as one drafter proposed it, with its confidences."""
        if len(tree) > 1:
            self._judge(key, tree, 0, emitted, _FADING)

    def go_on(self, key: int, emitted: Many[int]) -> None:
        """Learn from what was emitted behind drafts of earlier steps that the text has followed so far."""
        for tree, at in list(self._open.pop(key, {}).values()):
            self._judge(key, tree, at, emitted, 1.0)

    def _judge(self, key: int, tree: DraftTree, at: int, emitted: Many[int], fading: float) -> None:
        """Learn from what was emitted behind one node of a tree. fading: decay of what the request has shown before."""
        nodes, end = judged(tree, at, emitted)
        of, hits, expected = "", 0.0, 0.0
        rates, table = self._rates_of(of), self._chances.get(of)
        for node, hit in nodes:
            source, depth, held = tree.sources[node], tree.depth[node], tree.confidences[node]
            if source != of:
                of, rates, table = source, self._rates_of(source), self._chances.get(source)
            level, place = (depth if depth < DEEPEST else DEEPEST) - 1, class_of(held)
            rate = rates[level][place]
            if rate is None:
                rate = rates[level][place] = DecayedRate(_PRIOR * _word(held), _PRIOR, _MEMORY)
            expected += rate.rate
            hits += hit
            rate.see(hit)
            if table is not None:
                table[level, place] = rate.rate
        of = tree.sources[1]
        if nodes:
            record = self._requests.setdefault((key, of), _Record())
            record.judged = fading * record.judged + len(nodes)
            record.hits = fading * record.hits + hits
            record.expected = fading * record.expected + expected
        if end is not None:
            # one of several overlapping drafts is enough
            self._open.setdefault(key, {}).setdefault(of, (tree, end))

    def release(self, key: int) -> None:
        """Forget a request; what was learnt from it about drafters stays."""
        self._open.pop(key, None)
        for known in [place for place in self._requests if place[0] == key]:
            del self._requests[known]

    def _rates_of(self, source: str) -> list[list[DecayedRate | None]]:
        rates = self._rates.get(source)
        if rates is None:
            rates = self._rates[source] = [[None] * CLASSES for _ in range(DEEPEST)]
        return rates


def _word(held: float) -> float:
    """A confidence, which may be any number, as a probability."""
    return min(max(held, 0.0), 1.0)


def judged(tree: DraftTree, at: int, emitted: Many[int]) -> tuple[list[tuple[int, bool]], int | None]:
    """Every node behind `at` whose parent was right, and whether it was; and the node that the text has reached, None where it
    has left the tree, or the tree has ended."""
    nodes: list[tuple[int, bool]] = []
    if tree.is_chain:
        for node, (drafted, token) in enumerate(zip(tree.tokens[at + 1 : tree.candidates], emitted, strict=False), at + 1):
            nodes.append((node, drafted == token))
            if drafted != token:
                return nodes, None
        end = at + len(emitted)
        return nodes, end if end < tree.candidates - 1 else None
    for token in emitted:
        right = tree.children[at].get(token)
        for node in tree.siblings[at]:
            nodes.append((node, node == right))
        if right is None:
            return nodes, None
        at = right
    return nodes, at if tree.siblings[at] else None


def expected_tokens(tree: DraftTree) -> float:
    """Tokens a step is expected to emit: one, and one for every candidate that is right with all its ancestors.

    The tree's confidences are taken as probabilities. Source: Sequoia (arXiv:2402.12374), section 4.1, for any tree.
    """
    return sum(tree.chances)
