"""Tokens that the answer's grammar forces: where it allows only one continuation, the next tokens are known without a model.

Forced tokens are, for example, keys and punctuation of a JSON object, the rest of a word that its first letters determine, and
the end of the answer. For requests without a grammar it drafts nothing.

Source: fast-forwarded tokens of llguidance; jump-forward decoding, Zheng et al., SGLang (arXiv:2312.07104), section 4.
Proposals: POINT
Taps: none
Branching: REPLAY
Trained: no
Cost: microseconds per token, most of them for grammar masks that the target needs anyway
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget
from paceline.drafters.base import Drafter, Surroundings
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """depth: most tokens in a draft."""

    model_config = ConfigDict(extra="forbid")

    depth: Annotated[int, Field(ge=1, le=64)] = 16


class GrammarDrafter(Drafter):
    name = "grammar"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, options: Options) -> None:
        self.budget = Budget(nodes=options.depth, depth=options.depth)

    def suits(self, sequence: Sequence) -> bool:
        return sequence.constraint is not None

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        return [self._one(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        room = min(budget.levels, self.budget.depth)
        forced = sequence.constraint.forced(room) if sequence.constraint is not None else ()
        if not forced:
            return DraftTree.root(sequence.root)
        # nothing else can be chosen
        return DraftTree.chain(sequence.root, forced, self.name, confidences=(1.0,) * len(forced))


def build(options: Options, surroundings: Surroundings) -> GrammarDrafter:
    return GrammarDrafter(options)
