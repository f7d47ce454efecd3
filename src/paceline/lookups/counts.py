"""Counts: which tokens followed each context in a text, how often, and the likeliest tree by such counts.

The context of a count is one number: always 0 for unigrams, a token id for bigrams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import numpy as np

from paceline.budget import Budget
from paceline.tree import DraftTree

_LATEST = 256
"""Tokens that can be taken back: more than a draft in a cascade and the draft ahead of it have together."""


class Counts:
    """Counts of one text, which may grow and be cut back a little. The `width` commonest tokens of every context are kept sorted,
    so that a step takes time only for what it adds; of equally common ones the latest comes first, in `of_text` the smallest
    id."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._counts: dict[int, dict[int, int]] = {}
        self._best: dict[int, list[int]] = {}
        self._totals: dict[int, int] = {}
        self._latest: deque[tuple[int, int, list[int]]] = deque(maxlen=_LATEST)
        """Per token added last: its context, the token, and the best of that context before it."""

    @classmethod
    def of_text(cls, contexts: np.ndarray, tokens: np.ndarray, width: int) -> Counts:
        """Counts of a whole text at once, the rarer tokens of a context left out. contexts, tokens: int [n]."""
        counts = cls(width)
        pairs, times = np.unique((contexts.astype(np.int64) << 32) + tokens, return_counts=True)
        order = np.lexsort((-times, pairs >> 32))
        pairs, times = pairs[order], times[order]
        for context, token, count in zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), times.tolist(), strict=True):
            best = counts._best.setdefault(context, [])
            counts._totals[context] = counts._totals.get(context, 0) + count
            if len(best) < width:
                best.append(token)
                counts._counts.setdefault(context, {})[token] = count
        return counts

    def add(self, context: int, token: int) -> None:
        """Count one more token."""
        counts = self._counts.setdefault(context, {})
        count = counts[token] = counts.get(token, 0) + 1
        self._totals[context] = self._totals.get(context, 0) + 1
        best = self._best.setdefault(context, [])
        self._latest.append((context, token, best[:]))
        if token in best:
            best.remove(token)
        at = len(best)
        while at and counts[best[at - 1]] <= count:
            at -= 1
        best.insert(at, token)
        del best[self._width :]

    def take_back(self, tokens: int) -> bool:
        """Undo the last `tokens` calls of `add`; returns False, and changes nothing, where not so many are remembered."""
        if tokens > len(self._latest):
            return False
        for _ in range(tokens):
            context, token, best = self._latest.pop()
            counts = self._counts[context]
            counts[token] -= 1
            self._totals[context] -= 1
            # counts do not show which of equals was the latest: the old order is restored, not computed
            self._best[context] = best
            if not counts[token]:
                del counts[token]
            if not counts:
                del self._counts[context], self._totals[context], self._best[context]
        return True

    def total(self, context: int) -> int:
        """Tokens counted in this context."""
        return self._totals.get(context, 0)

    def best(self, context: int) -> list[tuple[int, int]]:
        """The commonest tokens of a context and how often each came."""
        counts = self._counts.get(context, {})
        return [(token, counts[token]) for token in self._best.get(context, ())]

    @property
    def held_bytes(self) -> int:
        """An estimate: a dictionary's entry, an integer and a place in a list per pair, three small containers per context, and a
        tuple and a list per token that can be taken back."""
        latest = (130 + 8 * self._width) * len(self._latest)
        return 140 * sum(map(len, self._counts.values())) + 400 * len(self._counts) + latest


def likeliest(
    root: int, successors: Callable[[int], Iterable[tuple[int, float]]], source: str, budget: Budget, worth: float = 0.0
) -> DraftTree:
    """The tree of the nodes most likely to be right with all their ancestors, each with a probability of `worth` at least.

    successors: a token -> tokens that may follow it, distinct, with their confidences.
    """
    tokens, parents, held, depth = [root], [-1], [1.0], [0]
    waiting: list[tuple[float, int, int, int, float]] = []
    chance, node, pushed = 1.0, 0, 0
    while True:
        if depth[node] < budget.depth and held[node] >= budget.floor:
            for token, confidence in successors(tokens[node]):
                if chance * confidence >= worth:
                    # the number before the node keeps equally likely ones in their order
                    pushed += 1
                    heappush(waiting, (-chance * confidence, pushed, node, token, confidence))
        if not waiting or len(tokens) > budget.nodes:
            break
        chance, _, parent, token, confidence = heappop(waiting)
        chance, node = -chance, len(tokens)
        tokens.append(token)
        parents.append(parent)
        held.append(confidence)
        depth.append(depth[parent] + 1)
    return DraftTree.grown(source, tokens, parents, held)
