"""Policy: how much is drafted, by which drafters, and which nodes the target verifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Many

from paceline.budget import Budget, DrafterInfo
from paceline.learning.acceptance import Acceptance, expected_tokens
from paceline.learning.costs import Costs, Timings
from paceline.learning.depth_acceptance import DepthAcceptance
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree


class Policy(ABC):
    """costs, acceptance, depth_acceptance: what the step measures and learns, for every policy to read. measures: whether the
    costs should be measured before the first step. learns: whether the outcome of this step is learnt from, by them as well."""

    name: str
    measures: bool = False
    learns: bool = True

    def __init__(self) -> None:
        self.costs, self.acceptance, self.depth_acceptance = Costs(), Acceptance(), DepthAcceptance()

    def deepest(self, whole: bool) -> int | None:
        """Maximum depth, in levels, of a draft model that was given none; None for the model's own default.

        whole: whether a draft takes the time of all levels that it may have, wherever it ends.
        """
        return None

    def begin(self, rows: int, sequences: int) -> None:
        """A step begins. rows: those it feeds before anything is drafted, more than `sequences` where it reads prompts.
        sequences: those that decode."""

    def skips_drafting(self, sequences: Many[Sequence]) -> bool:
        """Whether nothing is drafted in this step, so that no drafter is considered. Called once per step, before `budgets`,
        unless a sequence names its drafters."""
        return False

    @abstractmethod
    def budgets(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        """How much this drafter may draft for each sequence in this step. trees: what the drafters before it proposed."""

    def trimmed(self, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[DraftTree]:
        """The part of the drafted trees that the target verifies; never called for trees whose tokens were drawn at random."""
        return list(trees)

    def predicted(self, tree: DraftTree) -> float:
        """Expected tokens that a step which verifies this tree emits for its sequence."""
        return expected_tokens(tree)

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], timings: Timings) -> None:
        """Observe the verdicts and the times of a step."""

    def fork(self, key: int, new_key: int, length: int) -> None:
        """Sequence `new_key` begins with the first `length` tokens of `key`, with what its drafters had read of those."""

    def release(self, key: int) -> None:
        """Forget a sequence; a no-op for one never seen."""
