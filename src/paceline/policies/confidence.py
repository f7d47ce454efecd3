"""Confidence: a draft continues while its drafter is confident enough of it.

A draft model stops after the first token with a probability below the threshold or, unless it has a `depth` of its own, after
20; on a device that computes drafts as a whole, it keeps its default depth. Lookups draft at no cost, so their nodes below the
threshold are dropped afterwards. The probability of such a node is estimated from how often drafts of that confidence were
right, and from what more likely tokens of other drafters leave for it.

Source: the assistant confidence threshold of transformers' assisted generation (Mamou et al., arXiv:2405.04304, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget, DrafterInfo
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.tree import DraftTree


class Options(BaseModel):
    """threshold: least probability at which a draft continues."""

    model_config = ConfigDict(extra="forbid")

    threshold: Annotated[float, Field(ge=0.0, le=1.0)] = 0.4


_DEEPEST = 20
"""Depth, in levels, of drafters that stop by this rule."""


class ConfidencePolicy(Policy):
    name = "confidence"

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.threshold = options.threshold
        self._stopping: set[str] = set()
        """Drafters that stop by themselves: what they drafted has already been paid for."""

    def deepest(self, whole: bool) -> int | None:
        return None if whole else _DEEPEST

    def budgets(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        if not drafter.costly:
            return [drafter.budget] * len(sequences)
        self._stopping.add(drafter.name)
        return [replace(drafter.budget, floor=self.threshold)] * len(sequences)

    def trimmed(self, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[DraftTree]:
        return [tree.only(node for node in range(1, len(tree)) if self._keeps(tree, node)) for tree in trees]

    def _keeps(self, tree: DraftTree, node: int) -> bool:
        sure = node >= tree.candidates or tree.confidences[node] >= self.threshold
        return sure or tree.sources[node] in self._stopping


def build(options: Options) -> ConfidencePolicy:
    return ConfidencePolicy(options)
