"""Fixed: in every step each drafter may draft its full budget.

Source: the constant draft length of Leviathan et al. (arXiv:2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from paceline.budget import Budget, DrafterInfo
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.spec import NoOptions as Options
from paceline.tree import DraftTree


class FixedPolicy(Policy):
    name = "fixed"

    def budgets(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        return [drafter.budget] * len(sequences)


def build(options: Options) -> FixedPolicy:
    return FixedPolicy()
