"""KVCache: what every store of keys and values can do, and how far it can branch.

A cache holds, per sequence, a prefix of the committed tokens. `stage` makes room for the rows of a step behind that prefix,
the forward writes them, and `commit` keeps the rows that the verdict accepted and forgets the others. A step that is staged
and never committed (an error, an abort) leaves the prefix as it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Many
from enum import IntEnum

from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict


class Branching(IntEnum):
    """How a model's state can follow a draft; a larger value can do all that a smaller one can."""

    NONE = 0
    """One token after another; nothing can be taken back."""
    REPLAY = 1
    """A chain; taking it back means going to a snapshot and feeding again what was accepted."""
    CHAIN = 2
    """A chain, truncated in place."""
    TREE = 3
    """Any tree; the accepted path is kept, the rest forgotten."""


class KVCache(ABC):
    """The keys and values of many sequences, each under its `Sequence.key`."""

    branching: Branching = Branching.TREE

    @abstractmethod
    def length(self, key: int) -> int:
        """Committed tokens held for this sequence; 0 for one never seen."""

    @abstractmethod
    def stage(self, step: Step) -> None:
        """Make room for the rows of `step`. Raises ValueError where a segment does not start at its cached length."""

    @abstractmethod
    def commit(self, verdicts: Many[Verdict]) -> None:
        """Keep, of the staged step, every chain and every accepted path; one verdict per segment."""

    def pretend(self, sequence: Sequence, length: int) -> bool:
        """Hold the first `length` tokens of a sequence without a forward that writes them: for measuring what a context costs.

        Returns False where the cache cannot.
        """
        held = self.length(sequence.key)
        self.stage(Step.of([Feed(sequence, held, tuple(sequence.tokens[held:length]))]))
        self.commit([Verdict()])
        return True

    @abstractmethod
    def truncate(self, key: int, length: int) -> None:
        """Forget all but the first `length` tokens; a no-op where no more are held."""

    @abstractmethod
    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        """Give `new_key` the same prefix as `key`, or as much of its first `length` tokens as `truncate` would leave."""

    def move(self, key: int, new_key: int) -> None:
        """Give `new_key` what `key` holds, and forget `key`."""
        self.fork(key, new_key)
        self.release(key)

    def shrink(self, key: int) -> None:
        """Give back most of the room reserved for tokens that never came; a no-op where there is none."""

    @abstractmethod
    def release(self, key: int) -> None:
        """Forget a sequence; a no-op for one never seen."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of memory that the keys and values of all sequences take."""


def kept_slots(step: Step, verdicts: Many[Verdict]) -> list[tuple[int, list[int]]]:
    """Per segment of a step: the length once its chain is kept, and the slots of the accepted path in order."""
    return [
        (segment.start + segment.chain, [segment.slot(node) for node in verdict.kept])
        for segment, verdict in zip(step.segments, verdicts, strict=True)
    ]


def check_starts(step: Step, cache: KVCache) -> None:
    """Raise ValueError unless every segment begins where the cache ends: the prefix invariant."""
    for segment in step.segments:
        held = cache.length(segment.sequence.key)
        if segment.start != held:
            raise ValueError(f"a step starts at token {segment.start}, but the cache holds {held}")


def check_chains(step: Step) -> None:
    """Raise ValueError where a segment branches: for caches of models that cannot."""
    if not all(segment.is_chain for segment in step.segments):
        raise ValueError("a branching draft was staged for a model that cannot branch: stage its first_chain() instead")
