"""Fixed: every step may draft what the drafter asks for.

Source: the constant draft length of Leviathan et al. (arXiv:2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.tree import Budget


class FixedPolicy(Policy):
    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def budgets(self, sequences: Many[Sequence]) -> list[Budget]:
        return [self.budget] * len(sequences)


def build(budget: Budget) -> FixedPolicy:
    return FixedPolicy(budget)
