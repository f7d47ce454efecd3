"""DraftTree: what a drafter proposes. Every draft is a tree; everything else about its shape is derived here.

Node 0 is the root, the last committed token, so a chain is a tree of width one and plain decoding is a tree of one node.
Only `tokens` and `parents` are stored: depth, children, ancestors and paths are functions of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Many
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import torch


class Proposal(Enum):
    """How the tokens of a tree were chosen; a verifier declares per kind whether it is exact (METHODS: verifiers)."""

    POINT = "point"
    """A deterministic choice given the prefix (lookup, greedy, top-k): the proposal distribution is a point mass."""
    IID = "iid"
    """Siblings drawn independently from the recorded distribution."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Siblings drawn one after another without replacement from the recorded distribution."""
    COUPLED = "coupled"
    """Chosen with the very position-keyed noise that the verifier will use (drafter-invariant speculation)."""


@dataclass(frozen=True)
class Budget:
    """What a drafter may propose for one sequence in one step: nodes besides the root, and levels below it."""

    nodes: int
    depth: int


@dataclass(frozen=True)
class DraftTree:
    """A tree of candidate continuations of one sequence.

    tokens: N token ids; node 0 is the root. parents: N node indices, -1 for the root; a parent precedes its children.
    proposals: for drawn kinds, parent node -> float32 [V], the distribution its children were really drawn from.
    sources: N drafter names ("" for the root), kept for tracing and for merging; left out, all are "".
    Raises ValueError where the shape is not a tree or, unless drawn independently, siblings repeat a token.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    kind: Proposal = Proposal.POINT
    proposals: Mapping[int, torch.Tensor] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or not self.tokens or self.parents[0] != -1:
            raise ValueError("a draft tree needs as many parents as tokens, and a root whose parent is -1")
        if any(not 0 <= parent < node for node, parent in enumerate(self.parents) if node):
            raise ValueError("in a draft tree every parent precedes its children")
        if not self.sources:
            object.__setattr__(self, "sources", ("",) * len(self.tokens))
        if len(self.sources) != len(self.tokens):
            raise ValueError("a draft tree names one source per node")
        edges = set(zip(self.parents, self.tokens, strict=True))
        if self.kind is not Proposal.IID and len(edges) != len(self.tokens):
            raise ValueError("siblings of a draft tree carry distinct tokens unless they were drawn independently")

    @classmethod
    def root(cls, token: int) -> DraftTree:
        """The tree of one node: plain decoding."""
        return cls((token,), (-1,), sources=("",))

    @classmethod
    def chain(cls, root: int, tokens: Many[int], source: str, kind: Proposal = Proposal.POINT) -> DraftTree:
        """A tree of width one: root, then `tokens` one below the other."""
        size = len(tokens)
        return cls((root, *tokens), tuple(range(-1, size)), kind, sources=("", *[source] * size))

    @classmethod
    def of_paths(cls, root: int, paths: Many[Many[int]], source: str, nodes: int) -> DraftTree:
        """The union of token paths below the root, earlier paths first, at most `nodes` nodes besides the root."""
        tokens, parents = [root], [-1]
        seen: dict[tuple[int, int], int] = {}
        for path in paths:
            node = 0
            for token in path:
                child = seen.get((node, token))
                if child is None:
                    if len(tokens) > nodes:
                        break
                    child = seen[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = child
        return cls(tuple(tokens), tuple(parents), sources=("", *[source] * (len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """N depths; the root's is 0. Position of a node = position of the root + depth."""
        depth: list[int] = []
        for parent in self.parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return tuple(depth)

    @cached_property
    def children(self) -> tuple[dict[int, int], ...]:
        """Per node, token -> child node (the first of equal independent siblings)."""
        children: tuple[dict[int, int], ...] = tuple({} for _ in self.tokens)
        for node in range(1, len(self.tokens)):
            children[self.parents[node]].setdefault(self.tokens[node], node)
        return children

    @cached_property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def ancestors(self) -> torch.Tensor:
        """bool [N, N]: entry [i, j] says that j is i or an ancestor of i, that is, that row i may see row j."""
        seen = torch.eye(len(self.tokens), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from below the root down to `node`; empty for the root."""
        nodes = []
        while node > 0:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def pruned(self, budget: Budget) -> DraftTree:
        """The nodes within the budget, earlier ones first; a node goes with its ancestors or not at all."""
        if len(self) - 1 <= budget.nodes and max(self.depth) <= budget.depth:
            return self
        place = {0: 0}
        for node in range(1, len(self)):
            if len(place) <= budget.nodes and self.depth[node] <= budget.depth and self.parents[node] in place:
                place[node] = len(place)
        kept = list(place)
        return DraftTree(
            tuple(self.tokens[node] for node in kept),
            tuple(place.get(self.parents[node], -1) for node in kept),
            self.kind,
            {place[node]: row for node, row in self.proposals.items() if node in place},
            tuple(self.sources[node] for node in kept),
        )

    def first_chain(self) -> DraftTree:
        """The path that takes the first child at every node: what a model that cannot branch can verify of this tree."""
        tip = 0
        while self.children[tip]:
            tip = min(self.children[tip].values())
        nodes = (0, *self.path(tip))
        proposals = {place: self.proposals[node] for place, node in enumerate(nodes) if node in self.proposals}
        sources = tuple(self.sources[node] for node in nodes)
        tokens = tuple(self.tokens[node] for node in nodes)
        return DraftTree(tokens, tuple(range(-1, len(nodes) - 1)), self.kind, proposals, sources)

    def merged(self, other: DraftTree, nodes: int) -> DraftTree:
        """This tree with the nodes of `other` that it lacks, at most `nodes` nodes besides the root.

        Both trees share the root. The union of COUPLED trees is COUPLED, any other is POINT and shows no proposals: what was
        drawn for either tree alone was not drawn for their union, so only rules that need no proposal are exact for it.
        """
        if self.tokens[0] != other.tokens[0]:
            raise ValueError("trees with different roots cannot be merged")
        tokens, parents, sources = [self.tokens[0]], [-1], [""]
        children: list[dict[int, int]] = [{}]
        for tree, limit in ((self, len(self) - 1), (other, nodes)):
            place = {0: 0}
            for node in range(1, len(tree)):
                parent, token = place.get(tree.parents[node]), tree.tokens[node]
                if parent is None:
                    continue
                if token not in children[parent]:
                    if len(tokens) > limit:
                        continue
                    children[parent][token] = len(tokens)
                    children.append({})
                    tokens.append(token)
                    parents.append(parent)
                    sources.append(tree.sources[node])
                place[node] = children[parent][token]
        both_coupled = self.kind is other.kind is Proposal.COUPLED
        kind = Proposal.COUPLED if both_coupled else Proposal.POINT
        return DraftTree(tuple(tokens), tuple(parents), kind, sources=tuple(sources))
