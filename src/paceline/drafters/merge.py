"""`a+b`: the merged trees of several drafters; cheap ones draft first, and what the others draft may depend on their result.

The policy decides how much each part drafts. Under `fixed`, the default for every spec but `auto`, the parts are not weighed
against each other: every part drafts all it asks for, and the budget of the tree is the sum of theirs. Under `adaptive` the
target verifies the nodes that are worth a row, whichever drafter proposed them.

Source: the union of token trees follows SpecInfer (arXiv:2305.09781), section 3, for any mixture of drafters.
Proposals: POINT, and those of its parts
Taps: those of its parts
Branching: the most that one of its parts needs
Trained: no
Cost: the sum of its parts
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from contextlib import ExitStack
from dataclasses import replace

from paceline.budget import Budget
from paceline.drafters.base import Drafter
from paceline.models.base import Scores
from paceline.noise import told_apart
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.union import union


class MergedDrafter(Drafter):
    """parts: those that are not costly first, since they may make the others unnecessary; else in the order given."""

    def __init__(self, parts: Many[Drafter]) -> None:
        self._parts = tuple(sorted(_named_apart(parts), key=lambda part: part.costly))
        self.name = "+".join(part.name for part in parts)
        # the tree of one part keeps its kind; a union is POINT unless all parts choose in the same way
        self.kinds = frozenset({Proposal.POINT}.union(*[part.kinds for part in parts]))
        self.taps = tuple(sorted({tap for part in parts for tap in part.taps}))
        self.read_texts = told_apart([part.read_texts for part in parts])
        self.budget = Budget(sum(part.budget.nodes for part in parts), max(part.budget.depth for part in parts))
        self.branching = max(part.branching for part in parts)
        self.costly = any(part.costly for part in parts)
        self.watches = any(part.watches for part in parts)

    @property
    def parts(self) -> tuple[Drafter, ...]:
        return self._parts

    def suits(self, sequence: Sequence) -> bool:
        return any(part.suits(sequence) for part in self._parts)

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        merged = [DraftTree.root(sequence.root) for sequence in sequences]
        for part in self._parts:
            served = [at for at, sequence in enumerate(sequences) if part.suits(sequence)]
            if not served:
                continue
            rooms = [left_beside(merged[at], budgets[at]).within(part.budget) for at in served]
            for at, tree in zip(served, part.propose([sequences[at] for at in served], rooms), strict=True):
                merged[at] = union(merged[at], tree)
        return [tree.first(budget.nodes) for tree, budget in zip(merged, budgets, strict=True)]

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        for part in self._parts:
            part.observe(sequences, trees, verdicts, scores)

    def truncate(self, key: int, length: int) -> None:
        for part in self._parts:
            part.truncate(key, length)

    def fork(self, key: int, new_key: int, length: int) -> None:
        for part in self._parts:
            part.fork(key, new_key, length)

    def move(self, key: int, new_key: int, length: int) -> None:
        for part in self._parts:
            part.move(key, new_key, length)

    def settle(self, key: int) -> None:
        for part in self._parts:
            part.settle(key)

    def release(self, key: int) -> None:
        # if one raises, the others still release
        with ExitStack() as released:
            for part in self._parts:
                released.callback(part.release, key)

    def forget(self) -> None:
        for part in self._parts:
            part.forget()

    @property
    def sequence_bytes(self) -> int:
        return sum(part.sequence_bytes for part in self._parts)


def left_beside(tree: DraftTree, room: Budget) -> Budget:
    """The room that is left for the next drafter. Drawn trees share one room: if both together were too large, which nodes are
    cut would depend on what was drawn, and verifiers that keep the distribution are exact only if that is decided before."""
    return replace(room, nodes=max(room.nodes - (len(tree) - 1), 0)) if tree.kind.drawn else room


def _named_apart(parts: Many[Drafter]) -> list[Drafter]:
    """Rename parts of equal names: their nodes, and what is learnt about them, are told apart by name."""
    seen: Counter[str] = Counter()
    for part in parts:
        seen[part.name] += 1
        if seen[part.name] > 1:
            part.name = f"{part.name} {seen[part.name]}"
    return list(parts)
