"""`a+b`: the trees of several drafters as one, under one budget; earlier drafters come first.

Source: the union of token trees follows SpecInfer (arXiv:2305.09781), section 3, for any mixture of drafters.
Proposals: POINT, and COUPLED where every part is
Taps: those of its parts
Branching: TREE
Trained: no
Cost: the sum of its parts
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import reduce

from paceline.drafters.base import Drafter
from paceline.models.base import Scores
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import Budget, DraftTree, Proposal


class MergedDrafter(Drafter):
    """parts: in order of precedence for the budget."""

    def __init__(self, parts: Many[Drafter]) -> None:
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        coupled = all(Proposal.COUPLED in part.kinds for part in parts)
        self.kinds = frozenset({Proposal.POINT, Proposal.COUPLED} if coupled else {Proposal.POINT})
        self.taps = tuple(sorted({tap for part in parts for tap in part.taps}))
        self.budget = Budget(sum(part.budget.nodes for part in parts), max(part.budget.depth for part in parts))

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        forests = [
            part.propose(
                sequences,
                [Budget(min(b.nodes, part.budget.nodes), min(b.depth, part.budget.depth)) for b in budgets],
            )
            for part in self.parts
        ]
        return [
            reduce(lambda left, right, nodes=budget.nodes: left.merged(right, nodes), trees)
            for budget, *trees in zip(budgets, *forests, strict=True)
        ]

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        for part in self.parts:
            part.observe(sequences, trees, verdicts, scores)

    def truncate(self, key: int, length: int) -> None:
        for part in self.parts:
            part.truncate(key, length)

    def fork(self, key: int, new_key: int) -> None:
        for part in self.parts:
            part.fork(key, new_key)

    def release(self, key: int) -> None:
        for part in self.parts:
            part.release(key)

    @property
    def held_bytes(self) -> int:
        return sum(part.held_bytes for part in self.parts)
