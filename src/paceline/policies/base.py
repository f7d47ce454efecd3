"""Policy: budgets per sequence and step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Many

from paceline.costs import Timings
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import Budget


class Policy(ABC):
    @abstractmethod
    def budgets(self, sequences: Many[Sequence]) -> list[Budget]:
        """How much may be drafted for each sequence in this step."""

    def observe(self, sequences: Many[Sequence], verdicts: Many[Verdict], timings: Timings) -> None:
        """See what a step brought and what it took."""
