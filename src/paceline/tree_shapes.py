"""Shapes of draft trees: the parent of every node, decided before any token is known.

A shape lists the parent of every node, -1 for the root. Siblings stand in the order of their rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from paceline.tree import DraftTree

Shape = tuple[int, ...]
Subtree = list["Subtree"]
"""The children of a node, each with its own."""


@lru_cache(maxsize=256)
def caterpillar(depth: int, width: int = 1) -> Shape:
    """A chain of `depth` nodes, each with `width - 1` siblings that have no children."""
    return (-1, *[max(level - 1, 0) * width + min(level, 1) for level in range(depth) for _ in range(width)])


@lru_cache(maxsize=256)
def brush(count: int, depth: int) -> Shape:
    """`count` chains of `depth` nodes below the root, for several samples. SpecInfer (arXiv:2305.09781), section 3."""
    return (-1, *[0] * count, *range(1, count * (depth - 1) + 1))


@lru_cache(maxsize=256)
def children(shape: Shape, nodes: int, depth: int) -> tuple[tuple[int, ...], ...]:
    """Per node of a shape its children, in order, as far as they are among the first `nodes` that are no deeper than `depth`."""
    found: list[list[int]] = [[] for _ in shape]
    levels = {0: 0}
    for node, parent in enumerate(shape[1:], 1):
        if len(levels) <= nodes and levels.get(parent, depth) < depth:
            levels[node] = levels[parent] + 1
            found[parent].append(node)
    return tuple(map(tuple, found))


def optimal_tree(acceptance: Many[float], nodes: int, depth: int) -> Shape:
    """The shape of at most `nodes` nodes besides the root, none deeper than `depth`, with the most tokens expected.

    acceptance: how likely the first, second, ... child of an accepted node is the one accepted; no node has more children than
    these. The likeliest node comes next, so that the first nodes of the shape are a good shape too.
    Source: the dynamic programme of Sequoia (arXiv:2402.12374), section 4.1: T(n, d, b), the best tree of n nodes and depth d
    with b children at its root, holds s nodes below the last of them and n - s elsewhere. O(nodes^2 * depth * children).
    The caller chooses `nodes` and `depth`, in a spec the user does. Sequoia goes on to choose both for the hardware, by how long
    a forward of so many rows takes on it, which is not done here.
    """
    size, depth = nodes + 1, min(depth, nodes)
    single = np.full(size + 1, -np.inf)
    single[1] = 1.0
    # elsewhere[n, s] is n - s, and 0 where no node is left for the root: no tree has 0 nodes
    elsewhere = np.maximum(np.subtract.outer(np.arange(size + 1), np.arange(size + 1)), 0)
    best = single
    plans: list[_Plan] = []
    for _ in range(depth):
        tables, last = [single], []
        for chance in acceptance:
            # a combination with a part that is no tree is none either
            sums = tables[-1][elsewhere] + np.where(best > 0.0, chance * np.maximum(best, 0.0), -np.inf)
            last.append(sums.argmax(1))
            tables.append(sums.max(1))
        stacked = np.stack(tables)
        plans.append(_Plan(stacked.argmax(0), last))
        best = stacked.max(0)
    return _by_worth(_planned(plans, int(best.argmax())), acceptance)


class _Plan:
    """The best trees of one depth. count: by nodes, the root's number of children. last: by rank and nodes, the size of that
    child's subtree."""

    def __init__(self, count: np.ndarray, last: list[np.ndarray]) -> None:
        self.count, self.last = count, last


def _planned(plans: list[_Plan], nodes: int) -> Subtree:
    """The best tree of `nodes` nodes, as deep as there are plans."""
    if not plans:
        return []
    plan, found = plans[-1], []
    for rank in reversed(range(int(plan.count[nodes]))):
        below = int(plan.last[rank][nodes])
        found.append(_planned(plans[:-1], below))
        nodes -= below
    return found[::-1]


def _by_worth(root: Subtree, acceptance: Many[float]) -> Shape:
    """A tree as a shape: next comes the node that is likeliest to be accepted with all its ancestors."""
    shape = [-1]
    waiting: list[tuple[float, int, int, float, Subtree]] = []

    def wait(parent: int, rank: int, worth: float, siblings: Subtree) -> None:
        if rank < len(siblings):
            heappush(waiting, (-worth * acceptance[rank], parent, rank, worth, siblings))

    wait(0, 0, 1.0, root)
    while waiting:
        negative, parent, rank, above, siblings = heappop(waiting)
        shape.append(parent)
        wait(len(shape) - 1, 0, -negative, siblings[rank])
        wait(parent, rank + 1, above, siblings)
    return tuple(shape)


_EXPECTED = (0.6, 0.15, 0.06, 0.03, 0.02, 0.01, 0.01, 0.01)
"""Acceptance by rank before any observation."""


class Ranks:
    """How often, recently, the first, second, ... child of a node that was right was right too: static trees are made by this.

    expected: this share before any observation. Observations decay with each further one of the same rank, so that a new kind of
    text counts soon. A rank that the shape has no room for gets no observations, and keeps its last estimate.
    """

    def __init__(self, expected: Many[float] = _EXPECTED) -> None:
        self._hits, self._trials = [chance * _PRIOR for chance in expected], [_PRIOR] * len(expected)
        self._seen, self._due = 0, _FIRST_LOOK

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Acceptance by rank."""
        return tuple(hits / trials for hits, trials in zip(self._hits, self._trials, strict=True))

    def observe(self, tree: DraftTree, emitted: Iterable[int]) -> bool:
        """Learn from what was emitted behind the root of a draft; returns whether enough was seen to compute a new shape."""
        node = 0
        for token in emitted:
            # of equal draws the first counts
            hit = tree.children[node].get(token)
            for rank, child in enumerate(tree.siblings[node][: len(self._hits)]):
                self._hits[rank] = self._hits[rank] * _KEPT + (child == hit)
                self._trials[rank] = self._trials[rank] * _KEPT + 1.0
            self._seen += 1
            if hit is None:
                break
            node = hit
        due = self._seen >= self._due
        self._due += min(self._due, _MEMORY) * due
        return due


_PRIOR = 20.0
"""Observations that the expected acceptance counts for."""
_FIRST_LOOK = 64
"""Nodes seen before a new shape is first due; then whenever their number has doubled, but at least every `_MEMORY` nodes."""
_MEMORY = 2048
"""The sum of weights of a rank's decayed observations in the long run, and the most nodes seen between two new shapes."""
_KEPT = 1.0 - 1.0 / _MEMORY
"""Factor by which each further observation reduces the weight of those before it."""
