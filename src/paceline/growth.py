"""Growth: what shape and kind a model's draft has, and a draft while it grows, level by level.

Nothing here computes logits: the caller, which has the model, reads in `Draft.asked` which nodes need logits, and passes them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence as Many
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from paceline.budget import Budget
from paceline.draws import siblings
from paceline.ranking import Noise, Ranked, Ranking
from paceline.sampling import Context, target_scores
from paceline.sequence import Sequence
from paceline.step import Feed, Verdict
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import Shape, children


@dataclass(frozen=True)
class Growth:
    """How a model drafts.

    kind: how tokens are chosen at a temperature; a greedy request is always drafted as POINT. shape: which nodes get children,
    however likely they turn out; None where the tree grows by what the model finds likely: `width` children of a node, for
    `width` nodes of a level, and of all of them the best that the budget has room for. amateur: record the model's own
    distribution, untouched by sampling parameters, at every node, those without children included, and draw from that one.
    Raises ValueError for a tree that would grow by the values of drawn tokens: its recorded distributions would be false.
    """

    kind: Proposal = Proposal.COUPLED
    shape: Shape | None = None
    width: int = 1
    amateur: bool = False

    def __post_init__(self) -> None:
        if self.shape is None and self.kind.drawn:
            raise ValueError("a tree of drawn tokens needs a shape that is settled before they are drawn")

    @cached_property
    def chain(self) -> int | None:
        """Levels of a draft that is a chain; None for any other."""
        shape = self.shape
        return len(shape) - 1 if shape is not None and shape == tuple(range(-1, len(shape) - 1)) else None


@dataclass(slots=True)
class _Node:
    """place: its index in the shape. path: tokens from below the root down to it. worth: likelihood of its whole path by the
    model's confidences. reach: the same by the budget's stopping rule; 1 without one."""

    token: int
    parent: int
    place: int
    path: tuple[int, ...]
    confidence: float
    worth: float
    reach: float = 1.0


class Draft:
    """One sequence's draft while it grows.

    asked: the nodes, all of one level, whose logits are needed next; none where the draft is done. forks: whether any but first
    children are asked for. A draft that never forks is fed and cached as text would be; one that does is fed anew for each
    level, behind the same prefix.
    """

    def __init__(self, sequence: Sequence, budget: Budget, growth: Growth, source: str) -> None:
        self.sequence, self._source = sequence, source
        self._budget, self._growth = budget, growth
        self._kind = Proposal.POINT if sequence.params.temperature == 0.0 else growth.kind
        self._slots = None if growth.shape is None else children(growth.shape, budget.nodes, budget.depth)
        self._nodes = [_Node(sequence.root, -1, 0, (), 1.0, 1.0)]
        self._proposals: dict[int, torch.Tensor] = {}
        self._fed: list[int] = []
        self._expecting: list[tuple[int, Many[int]]] = []
        """Nodes whose children are being chosen, and the children's indices in the shape."""
        self.asked = [0] if budget.some else []
        self._parents = set(self.asked)
        """Those of the nodes asked for that are to have children."""
        self.forks = self._slots is None or _forks(self._slots, growth.amateur)

    def feed(self, cached: int) -> Feed:
        """The rows of the next forward behind `cached` tokens; the last ones are those of the nodes that are asked for."""
        self._fed += self.asked
        nodes = [self._nodes[node] for node in self._fed]
        text = self.sequence.tokens[cached:]
        if not self.forks:
            text += nodes[-1].path[max(cached - len(self.sequence.tokens), 0) :]
            return Feed(self.sequence, cached, tuple(text), DraftTree.root(text[-1]))
        places = {node: place for place, node in enumerate(self._fed)}
        parents = tuple(places.get(node.parent, -1) for node in nodes)
        # drawn siblings may be equal
        return Feed(self.sequence, cached, tuple(text), DraftTree(tuple(node.token for node in nodes), parents, Proposal.IID))

    def look(self, logits: torch.Tensor, ranking: Ranking) -> None:
        """Have children chosen for the nodes that were asked for. logits: float32 [asked, V]."""
        level = len(self._nodes[self.asked[0]].path)
        noise = Noise(self.sequence.seed, len(self.sequence.tokens) + level) if self._kind is Proposal.COUPLED else None
        self._expecting = []
        for at, row in zip(self.asked, logits, strict=True):
            if self._growth.amateur and (shown := _distribution(row)) is not None:
                self._proposals[at] = shown
            places = self._places(self._nodes[at]) if at in self._parents else ()
            if places:
                self._expecting.append((at, places))
                self._choose(at, row, len(places), noise, ranking)

    def grow(self, chosen: Iterator[Ranked]) -> None:
        """Add the chosen children below the nodes that were asked for, in the order of `look`."""
        fresh: list[int] = []
        stopping = self._budget.stopping
        for at, places in self._expecting:
            node = self._nodes[at]
            for place, (token, confidence) in zip(places, next(chosen), strict=False):
                fresh.append(len(self._nodes))
                worth, path = node.worth * confidence, (*node.path, token)
                reach = stopping.reach(node.reach, len(path), confidence) if stopping else 1.0
                self._nodes.append(_Node(token, at, place, path, confidence, worth, reach))
        self._parents = set(self._parents_of(fresh)) if fresh else set()
        self.asked = [node for node in fresh if node in self._parents or self._growth.amateur]

    def _places(self, node: _Node) -> Many[int]:
        return range(self._growth.width) if self._slots is None else self._slots[node.place]

    def _parents_of(self, fresh: list[int]) -> Iterable[int]:
        """The nodes of a new level that get children. The floor and the end of the text may be tested for drawn tokens too: the
        token they depend on stays in the tree."""
        nodes, budget, ends = self._nodes, self._budget, self.sequence.stop_ids
        if len(nodes[fresh[0]].path) == budget.depth:
            return ()
        going = [node for node in fresh if nodes[node].confidence >= budget.floor and nodes[node].token not in ends]
        if budget.stopping is not None:
            stopping, level = budget.stopping, len(nodes[fresh[0]].path)
            going = [node for node in going if stopping.goes_on(level, nodes[node].reach)]
        if self._slots is not None:
            return (node for node in going if self._slots[nodes[node].place])
        best = set(self._best())
        return [node for node in self._by_worth(going) if node in best][: self._growth.width]

    def _by_worth(self, nodes: Iterable[int]) -> list[int]:
        """Nodes by falling worth. A parent precedes its children: none is worth more, and of equals the older comes first."""
        return sorted(nodes, key=lambda node: -self._nodes[node].worth)

    def _best(self) -> list[int]:
        """The nodes that the budget has room for."""
        return self._by_worth(range(1, len(self._nodes)))[: self._budget.nodes]

    def _choose(self, at: int, row: torch.Tensor, count: int, noise: Noise | None, ranking: Ranking) -> None:
        """Give `ranking` up to `count` children of a node, best or first drawn first; none where its logits are not numbers."""
        node = self._nodes[at]
        scores = target_scores(row, Context(self.sequence, node.path))
        if not self._kind.drawn:
            ranking.rank(scores, count, noise)
            return
        probs = self._proposals.get(at) if self._growth.amateur else _distribution(scores)
        if probs is None:
            ranking.put([])
            return
        self._proposals[at] = probs
        tokens = siblings(probs, self._kind, count, self.sequence, self._source, node.place)
        ranking.put(list(zip(tokens, probs[tokens].tolist(), strict=True)))

    def _order(self) -> list[int]:
        """The nodes of the tree below its root: by falling worth, or in the order of the shape where there is one."""
        if self._slots is None:
            return self._best()
        return sorted(range(1, len(self._nodes)), key=lambda node: self._nodes[node].place)

    def kept(self) -> Verdict:
        """The rows of the last forward that a cache may keep: the first chain of a draft that forks, once it is done."""
        if not self.forks or self.asked:
            return Verdict()
        order, path = self._order(), []
        node = next((child for child in order if self._nodes[child].parent == 0), None)
        while node in self._fed:
            path.append(node)
            node = next((child for child in order if self._nodes[child].parent == node), None)
        tokens = [self._nodes[node].token for node in path]
        # a cache keeps all but the last token that was emitted, and here none was
        return Verdict(tuple(self._fed.index(node) for node in path), (*tokens, 0), len(path))

    def tree(self) -> DraftTree:
        """What was drafted."""
        order = [0, *self._order()]
        if len(order) == 1 and not self._proposals:
            return DraftTree.root(self.sequence.root)
        places = {node: place for place, node in enumerate(order)}
        nodes = [self._nodes[node] for node in order]
        return DraftTree(
            tuple(node.token for node in nodes),
            tuple(places.get(node.parent, -1) for node in nodes),
            self._kind,
            {(places[node], self._source): probs for node, probs in self._proposals.items() if node in places},
            ("", *[self._source] * (len(nodes) - 1)),
            tuple(node.confidence for node in nodes),
        )


def _distribution(scores: torch.Tensor) -> torch.Tensor | None:
    """float32 [V]: the softmax of scores; None where they are not numbers, which no verifier could use."""
    probs = scores.softmax(-1)
    return probs if bool(probs[0] >= 0.0) else None


@lru_cache(maxsize=256)
def _forks(slots: tuple[tuple[int, ...], ...], everywhere: bool) -> bool:
    """Whether a shape asks for more than a chain of first children. everywhere: nodes without children are asked for too."""
    node = 0
    while asked := [child for child in slots[node] if slots[child] or everywhere]:
        if asked != [slots[node][0]]:
            return True
        node = asked[0]
    return False
