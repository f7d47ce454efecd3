"""Drafter: what proposes trees. State is kept per sequence under its key and can always be dropped and rebuilt."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from paceline.budget import Budget, DrafterInfo
from paceline.cache.base import Branching
from paceline.models.base import LanguageModel, Scores
from paceline.models.tokenizer import Tokenizer
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal


@dataclass(frozen=True)
class Surroundings:
    """What a drafter may be built from: the target, its tokenizer, a way to load another checkpoint, and what the verifier
    needs: the kinds of proposal it prefers, best first, and whether it needs the drafter's own distributions.

    load: takes a path and, optionally, a weight format other than the checkpoint's own.
    deepest: `Policy.deepest`."""

    target: LanguageModel
    tokenizer: Tokenizer
    load: Callable[..., tuple[LanguageModel, Tokenizer]]
    prefers: tuple[Proposal, ...] = (Proposal.COUPLED, Proposal.POINT)
    amateur: bool = False
    deepest: Callable[[bool], int | None] = lambda whole: None


class Drafter(ABC):
    """name: as in the spec. kinds: how its tokens may be chosen. taps: layers of the target whose hidden states it needs.

    budget: the most it drafts per step; a policy may grant less. branching: the least that it needs of a target; its trees are
    cut to their first chain where the target can do no more. trees_by: the option with which the user asked for trees, as in a
    spec ("width=4"), or "" for none: trees asked for are refused at load rather than cut. costly: whether drafting takes time
    that counts beside a forward. drafts_whole: whether a costly draft takes the time of all levels granted, wherever it ends.
    ends_early: whether it follows its budget's stopping rule, and so may be granted all levels. amateur: whether it records its
    own distributions at every node where `Surroundings.amateur` asks for them. watches: whether it learns from requests that it
    does not draft for. refers: whether it drafts from a request's own reference. read_texts: a hash below 2^63 of the texts it
    was built from, 0 where it was built from none (`noise.told_apart`). known_tokens: it drafts only behind texts of token ids
    below this.
    """

    name: str
    kinds: frozenset[Proposal]
    taps: tuple[int, ...] = ()
    budget: Budget
    branching: Branching = Branching.REPLAY
    trees_by: str = ""
    costly: bool = False
    drafts_whole: bool = False
    ends_early: bool = False
    amateur: bool = False
    watches: bool = False
    refers: bool = False
    read_texts: int = 0
    known_tokens: int = sys.maxsize

    @property
    def measured_as(self) -> str:
        """Identifies, for costly drafters, all that its drafting time depends on beside its budget."""
        return self.name

    @property
    def info(self) -> DrafterInfo:
        """The drafter as a policy sees it."""
        return DrafterInfo(self.name, self.budget, self.costly, self.refers, self.ends_early and not self.drafts_whole)

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The drafters that propose one after another; here only the drafter itself."""
        return (self,)

    def suits(self, sequence: Sequence) -> bool:
        """Whether it could propose anything for this sequence in this step; else `propose` is not called for it."""
        return True

    @abstractmethod
    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        """One tree per sequence within its budget, rooted at its last committed token; the root alone is always allowed."""

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        """Learn from the verdicts on the trees that the target saw; the tokens are committed already.

        The trees may have been merged with other drafters' and trimmed: a drafter's own nodes have its name as their source.
        """

    def truncate(self, key: int, length: int) -> None:
        """Forget what was learnt from tokens at and behind `length`."""

    def fork(self, key: int, new_key: int, length: int) -> None:
        """Give `new_key` the state of `key`, for its first `length` tokens or, where that saves no work, for all: it is
        truncated afterwards. A drafter that rebuilds its state may ignore it."""

    def move(self, key: int, new_key: int, length: int) -> None:
        """As `fork`, then forget `key`."""
        self.fork(key, new_key, length)
        self.release(key)

    def settle(self, key: int) -> None:
        """A sequence ended and is kept as a prefix for others: from now on only `fork`, `move` and `release` are called for
        it."""

    def release(self, key: int) -> None:
        """Forget a sequence; a no-op for one never seen."""

    def forget(self) -> None:
        """Forget what was learnt from the texts of all requests so far; a no-op for drafters that learn from one at a time."""

    @property
    def sequence_bytes(self) -> int:
        """Bytes of the state kept per sequence, over all sequences; `release` frees them."""
        return 0


State = TypeVar("State")


class StatefulDrafter(Drafter, Generic[State]):
    """A drafter that handles one sequence at a time and keeps a state for each, which can be rebuilt from its tokens alone."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        return [self._one(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    @abstractmethod
    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        """The tree of one sequence."""

    @abstractmethod
    def _begun(self, sequence: Sequence) -> State:
        """The state of a sequence that has none."""

    def _state(self, sequence: Sequence) -> State:
        """The state of a sequence, begun where there is none."""
        state = self._states.get(sequence.key)
        if state is None:
            state = self._states[sequence.key] = self._begun(sequence)
        return state

    def truncate(self, key: int, length: int) -> None:
        # removed meanwhile: after an interrupt here the state is rebuilt
        state = self._states.pop(key, None)
        if state is not None and self._cut(state, length):
            self._states[key] = state
        else:
            self.release(key)

    def _cut(self, state: State, length: int) -> bool:
        """Cut a state back to that of the first `length` tokens; False where it has to be rebuilt from them."""
        return False

    def settle(self, key: int) -> None:
        if type(self).fork is Drafter.fork:
            self.release(key)

    def release(self, key: int) -> None:
        self._states.pop(key, None)

    @property
    def sequence_bytes(self) -> int:
        return sum(self._bytes_of(state) for state in self._states.values())

    def _bytes_of(self, state: Any) -> int:
        """Bytes of one state; overridden where a state has no `held_bytes`."""
        return state.held_bytes


def likeliest(logits: torch.Tensor, rows: Many[int]) -> list[int]:
    """The likeliest token of each of these rows of float32 [N, V]. numpy finds it in a fraction of torch's time."""
    return (logits.numpy() if logits.device.type == "cpu" else logits)[list(rows)].argmax(-1).tolist()
