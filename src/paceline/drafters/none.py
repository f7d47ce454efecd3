"""No drafting: plain decoding, as a tree of one node.

Source: none; the baseline of every measurement.
Proposals: POINT
Taps: none
Branching: NONE
Trained: no
Cost: nothing
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from paceline.budget import NOTHING, Budget
from paceline.cache.base import Branching
from paceline.drafters.base import Drafter, Surroundings
from paceline.sequence import Sequence
from paceline.spec import NoOptions as Options
from paceline.tree import DraftTree, Proposal


class NullDrafter(Drafter):
    name = "none"
    kinds = frozenset({Proposal.POINT})
    budget = NOTHING
    branching = Branching.NONE

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        return [DraftTree.root(sequence.root) for sequence in sequences]


def build(options: Options, surroundings: Surroundings) -> NullDrafter:
    return NullDrafter()
