"""Acceptance: how often drafts come true, learnt as the text is written, by drafter, depth, confidence and request.

A drafter says how likely it holds each token (`DraftTree.confidences`, which may mean anything as long as more is better); here
that becomes a probability. What is learnt from is the text: every node whose parent came true was right or wrong, whether the
target looked at it or not, so a drafter that is not listened to is judged all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass
from itertools import islice

from paceline.tree import DraftTree

_CLASSES = 10
"""Classes of confidence, all alike in width."""
_DEEPEST = 8
"""Deeper nodes are judged as those of this depth."""
_PRIOR = 4.0
"""How many observations a drafter's own word counts for."""
_MEMORY = 400.0
"""Observations of a class remembered before older ones fade."""
_SHORT_MEMORY = 80.0
"""Those of a depth, which are to follow from one kind of request to the next."""
_FADING = 0.93
"""What a step leaves of what a request has shown before: some fifteen steps count."""
_FIRST = 0.6
"""How likely a token of a drafter is that was never seen at work."""
_DOUBT = 1.5
"""Expected hits of a request that must have come in, or failed to, before it is held to differ from others."""


@dataclass
class _Rate:
    """Hits and trials, the drafter's word among them."""

    hits: float
    trials: float
    memory: float = _MEMORY

    def see(self, hit: bool) -> None:
        self.hits += hit
        self.trials += 1.0
        if self.trials > self.memory:
            self.hits, self.trials = self.hits / 2, self.trials / 2


@dataclass
class _Record:
    """What one drafter did for one request of late: hits, and how many were expected."""

    hits: float = 0.0
    expected: float = 0.0

    @property
    def factor(self) -> float:
        return (self.hits + _DOUBT) / (self.expected + _DOUBT)


class Acceptance:
    """Probabilities that drafted tokens come true. Requests are known by their key until they are released."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int, int], _Rate] = {}
        self._levels: dict[str, list[_Rate]] = {}
        """Source -> rates by depth, whatever the confidence: what is known before a draft is made."""
        self._requests: dict[tuple[int, str], _Record] = {}

    def rated(self, key: int, tree: DraftTree) -> DraftTree:
        """The tree with the probability that each token is right once its parent is, in place of its drafter's word."""
        if len(tree) == 1:
            return tree
        factors: dict[str, float] = {}
        confidences = [1.0]
        for source, depth, held in islice(zip(tree.sources, tree.depth, tree.confidences, strict=True), 1, None):
            factor = factors.get(source)
            if factor is None:
                factor = factors[source] = self._factor(key, source)
            rate = self._rate(source, depth, held)
            confidences.append(min(factor * rate.hits / rate.trials, 0.999))
        return tree.rated(confidences)

    def of_chain(self, key: int, source: str, depth: int) -> list[float]:
        """Per depth up to `depth`, how likely a token of this drafter comes true once those before it have."""
        factor, levels = self._factor(key, source), self._levels.get(source, [])
        rates = [levels[min(level, _DEEPEST) - 1] for level in range(1, min(depth, len(levels)) + 1)]
        chances = [min(factor * rate.hits / rate.trials, 0.999) for rate in rates]
        # what was never drafted so deep is taken to go on as it went so far
        return chances + [chances[-1] if chances else _FIRST] * (depth - len(chances))

    def observe(self, key: int, tree: DraftTree, emitted: Many[int]) -> None:
        """See what was emitted behind the root of a tree as one drafter proposed it, confidences and all."""
        record = None
        for node, hit in _judged(tree, emitted):
            source, level = tree.sources[node], min(tree.depth[node], _DEEPEST)
            if record is None:
                record = self._requests.setdefault((key, source), _Record())
                record.hits *= _FADING
                record.expected *= _FADING
            rate = self._rate(source, level, tree.confidences[node])
            record.expected += rate.hits / rate.trials
            record.hits += hit
            rate.see(hit)
            levels = self._levels.setdefault(source, [])
            while len(levels) < level:
                levels.append(_Rate(_PRIOR * _FIRST, _PRIOR, _SHORT_MEMORY))
            levels[level - 1].see(hit)

    def release(self, key: int) -> None:
        """Forget a request; what it taught about its drafters stays."""
        for known in [place for place in self._requests if place[0] == key]:
            del self._requests[known]

    def _factor(self, key: int, source: str) -> float:
        record = self._requests.get((key, source))
        return record.factor if record is not None else 1.0

    def _rate(self, source: str, depth: int, held: float) -> _Rate:
        # asked for every node of every draft, twice: `min` and `max` would take most of the time
        confidence = 0.0 if held < 0.0 else held if held < 1.0 else 1.0
        place = (
            source,
            depth if depth < _DEEPEST else _DEEPEST,
            int(confidence * _CLASSES) if confidence < 1.0 else _CLASSES - 1,
        )
        rate = self._rates.get(place)
        if rate is None:
            rate = self._rates[place] = _Rate(_PRIOR * confidence, _PRIOR)
        return rate


def _judged(tree: DraftTree, emitted: Many[int]) -> Iterator[tuple[int, bool]]:
    """Every node whose parent came true, and whether it did."""
    if tree.is_chain:
        for node, (drafted, token) in enumerate(zip(tree.tokens[1 : tree.candidates], emitted, strict=False), 1):
            yield node, drafted == token
            if drafted != token:
                return
        return
    at = 0
    for token in emitted:
        right = tree.children[at].get(token)
        for node in tree.siblings[at]:
            yield node, node == right
        if right is None:
            return
        at = right


def expected_tokens(tree: DraftTree) -> float:
    """Tokens a step is expected to emit: one, and one for every candidate that comes true with all its ancestors.

    The tree's confidences are taken as probabilities. Source: Sequoia (arXiv:2402.12374), section 4.1, for any tree.
    """
    return sum(tree.chances)
