"""BASS: one draft length for the whole batch, longer after a fully accepted draft, shorter after every other step.

If any sequence accepts as many tokens as the deepest draft of the step has levels, the length grows by `increment`, up to
`limit`. Otherwise it shrinks by a tenth (`divisor`), rounded up, and by one more if it also shrank in the previous step, but
never below the most tokens accepted in the step. A draft model drafts to this length unless it has a `depth` of its own; lookups
stay within their own limits.

Source: BASS (arXiv:2404.15778), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from math import ceil
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.budget import Budget, DrafterInfo
from paceline.learning.costs import Timings
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree


class Options(BaseModel):
    """first: initial draft length. increment: added to the length after a success. limit: longest draft length. divisor: a
    failure subtracts the length divided by this."""

    model_config = ConfigDict(extra="forbid")

    first: Annotated[int, Field(ge=1, le=64)] = 7
    increment: Annotated[int, Field(ge=1, le=64)] = 2
    limit: Annotated[int, Field(ge=1, le=64)] = 32
    divisor: Annotated[int, Field(ge=1, le=64)] = 10

    @model_validator(mode="after")
    def _ordered(self) -> Options:
        if self.first > self.limit:
            raise ValueError("first must not exceed limit")
        return self


def next_length(length: int, drafted: int, failing: bool, accepted: Many[int], options: Options) -> tuple[int, bool]:
    """The draft length after a step, and whether that step failed.

    drafted: levels of its deepest draft, which may be fewer than the length. accepted: tokens accepted per sequence.
    """
    most = max(accepted)
    if most >= drafted:
        return min(length + options.increment, options.limit), False
    shorter = length - ceil(length / options.divisor) - failing
    return max(1, most, shorter), True


class BassPolicy(Policy):
    """The length holds for every drafter of a mixture, each within what it can do."""

    name = "bass"

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options, self.length = options, options.first
        self._failing = False
        self._granted = 0
        """Levels granted in this step, which may be fewer than `length` where no drafter can go as deep."""

    def deepest(self, whole: bool) -> int | None:
        return self.options.limit

    def budgets(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        depth = min(self.length, drafter.budget.depth)
        self._granted = max(self._granted, depth)
        return [Budget(depth * drafter.width, depth)] * len(sequences)

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], timings: Timings) -> None:
        # a request that names its drafters may draft further
        drafted = min(max((tree.deepest for tree in trees), default=0), self._granted)
        if drafted:
            accepted = [verdict.accepted for verdict in verdicts]
            self.length, self._failing = next_length(self._granted, drafted, self._failing, accepted, self.options)
        self._granted = 0


def build(options: Options) -> BassPolicy:
    return BassPolicy(options)
