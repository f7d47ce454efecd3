"""Drafter: what proposes trees. State is kept per sequence under its key and can always be dropped and rebuilt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass

from paceline.models.base import LanguageModel, Scores
from paceline.models.tokenizer import Tokenizer
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import Budget, DraftTree, Proposal


@dataclass(frozen=True)
class Surroundings:
    """What a drafter may be built from: the target, its tokenizer, and a way to load another checkpoint."""

    target: LanguageModel
    tokenizer: Tokenizer
    load: Callable[[str], tuple[LanguageModel, Tokenizer]]


class Drafter(ABC):
    """name: as the spec says it. kinds: how its tokens may be chosen. taps: layers of the target it needs to see.

    budget: what it wants per step when no policy knows better.
    """

    name: str
    kinds: frozenset[Proposal]
    taps: tuple[int, ...] = ()
    budget: Budget

    @abstractmethod
    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        """One tree per sequence within its budget, rooted at its last committed token; the root alone is always allowed."""

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        """See what came of the trees; the tokens are committed already. Stateless drafters need not look."""

    def truncate(self, key: int, length: int) -> None:
        """Forget what was learnt from tokens at and behind `length`."""

    def fork(self, key: int, new_key: int) -> None:
        """Give `new_key` the state of `key`; a drafter that rebuilds its state may ignore it."""

    def release(self, key: int) -> None:
        """Forget a sequence; a no-op for one never seen."""

    @property
    def held_bytes(self) -> int:
        """Bytes of state over all sequences."""
        return 0
