"""Policy: how much is drafted, by whom, and what of it the target looks at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Many

from paceline.budget import Budget, Part
from paceline.learning.acceptance import Acceptance, expected_tokens
from paceline.learning.costs import Costs, Timings
from paceline.learning.depths import Depths
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree


class Policy(ABC):
    """costs, acceptance, depths: what the step measures and learns, for every policy to read. measures: whether the costs should
    be measured before the first step. learns: whether what comes of this step is learnt from, by them too."""

    name: str
    measures: bool = False
    learns: bool = True

    def __init__(self) -> None:
        self.costs, self.acceptance, self.depths = Costs(), Acceptance(), Depths()

    def deepest(self, whole: bool) -> int | None:
        """Levels up to which a model should draft that was given no depth; None for as many as it does by itself.

        whole: whether its drafts take the time of all levels that they may have, wherever they end.
        """
        return None

    def begin(self, rows: int, sequences: int) -> None:
        """A step begins that feeds so many rows before anything is drafted, and drafts for so many sequences: more rows than
        those where it reads prompts."""

    def rests(self, sequences: Many[Sequence]) -> bool:
        """Whether nothing is to be drafted in this step, so that no part need be thought about. Asked once a step, before any
        budget, unless a sequence names its drafters."""
        return False

    @abstractmethod
    def budgets(self, part: Part, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        """How much this part may draft for each sequence in this step. trees: what the parts before it proposed."""

    def trimmed(self, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[DraftTree]:
        """What the target is to look at of the trees that were drafted; never asked about drawn ones."""
        return list(trees)

    def predicted(self, tree: DraftTree) -> float:
        """Tokens that a step over this tree is expected to emit for its sequence."""
        return expected_tokens(tree)

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], timings: Timings) -> None:
        """See what a step brought and what it took."""

    def fork(self, key: int, new_key: int, length: int) -> None:
        """Sequence `new_key` begins with the first `length` tokens of `key`, and so does what the drafters hold of it."""

    def release(self, key: int) -> None:
        """Forget a sequence; a no-op for one never seen."""
