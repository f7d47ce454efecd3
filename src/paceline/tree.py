"""DraftTree: what a drafter proposes. Every draft is a tree; everything else about its shape is derived here.

Node 0 is the root, the last committed token, so a chain is a tree of width one and plain decoding is a tree of one node.
Only `tokens` and `parents` are stored: depth, children, ancestors and paths are functions of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence as Many
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from paceline.budget import Budget


class Proposal(Enum):
    """How the tokens of a tree were chosen; a verifier declares per kind whether it is exact (docs/methods.md, Verifiers)."""

    POINT = "point"
    """A deterministic choice given the prefix (lookup, greedy, top-k): the proposal distribution is a point mass."""
    IID = "iid"
    """Siblings drawn independently from the recorded distribution."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Siblings drawn one after another without replacement from the recorded distribution."""
    COUPLED = "coupled"
    """Chosen with the very position-keyed noise that the verifier will use (drafter-invariant speculation)."""
    HUB = "hub"
    """Pairs of siblings, one of them drawn and one the likeliest of the recorded distribution, as SpecHub couples them."""

    @property
    def drawn(self) -> bool:
        """True where exactness rests on the recorded distributions: such trees are pruned blindly or not at all."""
        return self in (Proposal.IID, Proposal.WITHOUT_REPLACEMENT, Proposal.HUB)


UNKNOWN = 0.5
"""The confidence of a drafter that does not estimate it."""


@dataclass(frozen=True)
class DraftTree:
    """A tree of candidate continuations of one sequence, and of probes: rows in the same forward that are no candidates.

    tokens: N token ids; node 0 is the root. parents: N node indices, -1 for the root; a parent precedes its children.
    proposals: (node, source) -> float32 [V], the distribution `source` really drew the children of `node` from.
    sources: N drafter names ("" for the root), kept for tracing, merging and learning; left out, all are "".
    confidences: N numbers in [0, 1], how likely a token is, by its drafter, once its parent is right; they affect speed only.
    probes: how many of the last nodes are probes. They see their ancestors as any node does, and a probe has no children but
    probes. Their logits are computed; they are never accepted and never kept.
    Raises ValueError where the shape is not a tree or, unless drawn independently, siblings of one source repeat a token.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    kind: Proposal = Proposal.POINT
    proposals: Mapping[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    confidences: tuple[float, ...] = ()
    probes: int = 0

    def __post_init__(self) -> None:
        size = len(self.tokens)
        if size != len(self.parents) or not self.tokens or self.parents[0] != -1:
            raise ValueError("a draft tree needs as many parents as tokens, and a root whose parent is -1")
        if any(not 0 <= parent < node for node, parent in enumerate(self.parents) if node):
            raise ValueError("in a draft tree every parent precedes its children")
        for name, filler in (("sources", ""), ("confidences", UNKNOWN)):
            if not getattr(self, name):
                object.__setattr__(self, name, (filler,) * size)
            if len(getattr(self, name)) != size:
                raise ValueError(f"a draft tree has as many {name} as nodes")
        if not 0 <= self.probes < size:
            raise ValueError("the root of a draft tree is no probe")
        count = self.candidates
        if self.kind is Proposal.IID:
            return
        names = self.sources if self.kind.drawn else ("",) * count
        if len(set(zip(self.parents[:count], self.tokens[:count], names[:count], strict=True))) != count:
            raise ValueError("siblings of a draft tree carry distinct tokens unless they were drawn independently")

    @classmethod
    def root(cls, token: int) -> DraftTree:
        """The tree of one node: plain decoding."""
        # made in every step of every sequence, with nothing to check: six times as fast as the constructor
        tree = object.__new__(cls)
        tree.__dict__.update(_ROOT, tokens=(token,), proposals={})
        return tree

    @classmethod
    def chain(
        cls,
        root: int,
        tokens: Many[int],
        source: str,
        kind: Proposal = Proposal.POINT,
        confidences: Many[float] = (),
        proposals: Mapping[tuple[int, str], torch.Tensor] | None = None,
    ) -> DraftTree:
        """A tree of width one: root, then `tokens` one below the other, with the given confidences."""
        size = len(tokens)
        if confidences and len(confidences) != size:
            raise ValueError("a draft tree has as many confidences as nodes")
        return cls.unchecked(
            tokens=(root, *tokens),
            parents=tuple(range(-1, size)),
            kind=kind,
            proposals=proposals or {},
            sources=("", *[source] * size),
            confidences=(1.0, *confidences) if confidences else (UNKNOWN,) * (size + 1),
            probes=0,
            is_chain=True,
            depth=tuple(range(size + 1)),
            only_source=source if size else None,
        )

    @classmethod
    def grown(
        cls,
        source: str,
        tokens: Many[int],
        parents: Many[int],
        confidences: Many[float],
        kind: Proposal = Proposal.POINT,
        proposals: Mapping[tuple[int, str], torch.Tensor] | None = None,
    ) -> DraftTree:
        """A tree of N nodes that `source` added one by one, each below an existing node and, unless they are drawn independently,
        beside no equal sibling.

        It is not checked, which would take as long as looking its tokens up.
        """
        size, parents = len(tokens), tuple(parents)
        # most trees that lookups find are chains
        chain = parents == tuple(range(-1, size - 1))
        return cls.unchecked(
            tokens=tuple(tokens),
            parents=parents,
            kind=kind,
            proposals=proposals or {},
            sources=("", *[source] * (size - 1)),
            confidences=tuple(confidences),
            probes=0,
            is_chain=chain,
            only_source=source if size > 1 else None,
            **({"depth": tuple(range(size))} if chain else {}),
        )

    @classmethod
    def of_paths(
        cls, root: int, paths: Many[Many[int]], source: str, nodes: int, confidences: Many[Many[float]] | None = None
    ) -> DraftTree:
        """The union of token paths below the root, earlier paths first, at most `nodes` nodes besides the root.

        confidences: those of the tokens of every path; a node that several paths share takes the first.
        """
        tokens, parents, held = [root], [-1], [1.0]
        seen: dict[tuple[int, int], int] = {}
        for place, path in enumerate(paths):
            node = 0
            for level, token in enumerate(path):
                child = seen.get((node, token))
                if child is None:
                    if len(tokens) > nodes:
                        break
                    child = seen[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                    held.append(confidences[place][level] if confidences else UNKNOWN)
                node = child
        return cls.grown(source, tokens, parents, held)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def candidates(self) -> int:
        """Number of nodes that can be accepted, the root included; the nodes from this index on are probes."""
        return len(self.tokens) - self.probes

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """N depths; the root's is 0. Position of a node = position of the root + depth."""
        depth: list[int] = []
        for parent in self.parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return tuple(depth)

    @property
    def deepest(self) -> int:
        """Depth of the deepest candidate."""
        return max(self.depth[: self.candidates])

    @cached_property
    def children(self) -> tuple[dict[int, int], ...]:
        """Per candidate, token -> child node (the first of equal siblings), without probes."""
        children: tuple[dict[int, int], ...] = tuple({} for _ in range(self.candidates))
        for node in range(1, self.candidates):
            children[self.parents[node]].setdefault(self.tokens[node], node)
        return children

    @cached_property
    def siblings(self) -> tuple[tuple[int, ...], ...]:
        """Per candidate, its children in the order in which they were drawn, equal ones included."""
        found: list[list[int]] = [[] for _ in range(self.candidates)]
        for node in range(1, self.candidates):
            found[self.parents[node]].append(node)
        return tuple(map(tuple, found))

    @cached_property
    def chances(self) -> tuple[float, ...]:
        """Per candidate, how likely it is right with all its ancestors, its drafters' confidences taken as probabilities."""
        chances = [1.0]
        for node in range(1, self.candidates):
            chances.append(chances[self.parents[node]] * self.confidences[node])
        return tuple(chances)

    @cached_property
    def only_source(self) -> str | None:
        """The drafter of all candidates below the root; None where there are none, or several drafters."""
        drafted = self.sources[1 : self.candidates]
        return drafted[0] if drafted and drafted.count(drafted[0]) == len(drafted) else None

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
        """The nodes within the budget, earlier ones first; a node goes with its ancestors or not at all.

        What is cut depends on places in the tree alone, never on tokens, so drawn trees may be pruned too.
        """
        if len(self) - 1 <= budget.nodes and max(self.depth) <= budget.depth:
            return self
        return self.only(node for node in range(1, len(self)) if self.depth[node] <= budget.depth).first(budget.nodes)

    def until(self, ends: frozenset[int]) -> DraftTree:
        """The tree without candidates behind a token that ends the text. What is cut depends only on tokens before it on its
        path, as where a draft stops does, so it may be done to drawn trees too."""
        if ends.isdisjoint(self.tokens):
            return self
        through, kept = set[int](), list[int]()
        for node in range(1, self.candidates):
            if self.parents[node] in through:
                through.add(node)
                continue
            kept.append(node)
            if self.tokens[node] in ends:
                through.add(node)
        if len(kept) == self.candidates - 1:
            return self
        return self.only([*kept, *range(self.candidates, len(self))])

    def known(self, vocab_size: int) -> DraftTree:
        """The tree without candidates beyond a vocabulary of `vocab_size` tokens, and without what is below them."""
        if max(self.tokens) < vocab_size:
            return self
        rows = range(self.candidates, len(self))
        return self.only([*(node for node in range(1, self.candidates) if self.tokens[node] < vocab_size), *rows])

    def first(self, nodes: int) -> DraftTree:
        """The first `nodes` nodes besides the root."""
        if len(self) - 1 <= nodes:
            return self
        if self.probes or self.proposals or not self.is_chain or self.only_source is None:
            return self.only(range(1, nodes + 1))
        # most trees that a policy cuts short are chains
        names = ("tokens", "parents", "sources", "confidences", "depth", "chances")
        cut = {name: getattr(self, name)[: nodes + 1] for name in names}
        source = self.only_source if nodes else None
        return self.unchecked(**cut, kind=self.kind, proposals={}, probes=0, is_chain=True, only_source=source)

    def likeliest(self, nodes: int) -> DraftTree:
        """The `nodes` likeliest nodes besides the root, candidates before probes; of a drawn tree the first ones, since what is
        cut from it must not depend on its tokens."""
        if len(self) - 1 <= nodes or self.kind.drawn:
            return self.first(nodes)
        # a parent is no less likely than its children, and of equals the first stays
        ranked = sorted(range(1, self.candidates), key=lambda node: -self.chances[node])
        return self.only(sorted([*ranked, *range(self.candidates, len(self))][:nodes]))

    def only(self, nodes: Iterable[int]) -> DraftTree:
        """The root and those of `nodes`, given in rising order, whose ancestors are among them too."""
        place = {0: 0}
        for node in nodes:
            if self.parents[node] in place:
                place[node] = len(place)
        kept = list(place)
        return self.unchecked(
            tokens=tuple([self.tokens[node] for node in kept]),
            parents=tuple([place.get(self.parents[node], -1) for node in kept]),
            kind=self.kind,
            proposals={(place[node], source): row for (node, source), row in self.proposals.items() if node in place},
            sources=tuple([self.sources[node] for node in kept]),
            confidences=tuple([self.confidences[node] for node in kept]),
            probes=sum([node >= self.candidates for node in kept]) if self.probes else 0,
        )

    def rated(self, confidences: Many[float]) -> DraftTree:
        """The same tree with other confidences, N of them."""
        known = {**self.__dict__, "confidences": tuple(confidences)}
        known.pop("chances", None)
        if self.is_chain and not self.probes:
            # needed in a moment
            known["chances"] = tuple(accumulate(known["confidences"][1:], mul, initial=1.0))
        return self.unchecked(**known)

    def undrawn(self) -> DraftTree:
        """The same tree with every drawn token taken for a point mass, and no proposals."""
        return self.unchecked(**{**self.__dict__, "kind": Proposal.POINT, "proposals": {}}) if self.kind.drawn else self

    def shown(self) -> DraftTree:
        """The same tree without proposals: all that is needed to display it, and V times smaller."""
        return self.unchecked(**{**self.__dict__, "proposals": {}})

    @classmethod
    def unchecked(cls, **fields: Any) -> DraftTree:
        """A tree from fields that are known to be valid, not checked. Every step makes several, and each check takes 10 us."""
        tree = object.__new__(cls)
        tree.__dict__.update(fields)
        return tree

    def first_path(self) -> tuple[int, ...]:
        """The candidates from below the root down that take the first child at every node."""
        if self.is_chain:
            return tuple(range(1, self.candidates))
        path, tip = list[int](), 0
        while self.siblings[tip]:
            tip = self.siblings[tip][0]
            path.append(tip)
        return tuple(path)

    def first_chain(self) -> DraftTree:
        """The tree of `first_path` alone: what a model that cannot branch can verify of this tree."""
        return self.only(self.first_path())


_ROOT: dict[str, Any] = {
    "parents": (-1,),
    "kind": Proposal.POINT,
    "sources": ("",),
    "confidences": (UNKNOWN,),
    "probes": 0,
    # the properties derived from a tree's shape, known beforehand for this one
    "depth": (0,),
    "children": ({},),
    "siblings": ((),),
    "chances": (1.0,),
    "is_chain": True,
    "only_source": None,
}
"""Fields that all trees of one node share; never written to."""
