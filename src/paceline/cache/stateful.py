"""Whole states: the cache of a model that keeps its own per-sequence state and can remove tokens from it in place.

The state is opaque here; whoever creates the cache supplies the few operations on it. Branching: TREE or CHAIN, depending on the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from typing import Generic, TypeVar

from paceline.cache.base import Branching, KVCache, check_chains, check_starts, kept_slots
from paceline.sequence import Sequence
from paceline.step import Step, Verdict

State = TypeVar("State")


class StatefulCache(KVCache, Generic[State]):
    """Per sequence one state, whose first `length` slots are committed; others are removed before the state is used again.

    new: makes a state that has seen nothing. copy: makes one that later forwards on the original do not touch. keep: keeps, in
    place, the first of so many slots and then those that are listed, in that order; there may be fewer. nbytes: the device
    memory that a state holds.
    """

    def __init__(
        self,
        new: Callable[[], State],
        copy: Callable[[State], State],
        keep: Callable[[State, int, Many[int]], None],
        nbytes: Callable[[State], int],
        branching: Branching,
    ) -> None:
        self._new, self._copy, self._keep, self._nbytes, self.branching = new, copy, keep, nbytes, branching
        self._states: dict[int, State] = {}
        self._lengths: dict[int, int] = {}
        self._written: set[int] = set()
        self._staged: Step | None = None

    def length(self, key: int) -> int:
        return self._lengths.get(key, 0)

    def state(self, key: int) -> State:
        """The state of a staged sequence, for the forward to grow by that segment's rows."""
        self._written.add(key)
        return self._states[key]

    def stage(self, step: Step) -> None:
        check_starts(step, self)
        if self.branching < Branching.TREE:
            check_chains(step)
        for segment in step.segments:
            key = segment.sequence.key
            if key not in self._states:
                self._states[key], self._lengths[key] = self._new(), 0
            self._settle(key)
        self._staged = step

    def _settle(self, key: int) -> None:
        """Take back what a step that was never committed left in the state."""
        if key in self._written:
            self._keep(self._states[key], self._lengths[key], ())
            self._written.discard(key)

    def commit(self, verdicts: Many[Verdict]) -> None:
        if self._staged is None:
            raise ValueError("nothing is staged")
        for segment, (length, slots) in zip(self._staged.segments, kept_slots(self._staged, verdicts), strict=True):
            key = segment.sequence.key
            self._lengths[key] = length + len(slots)
            if len(slots) < segment.end - length:
                self._keep(self._states[key], length, slots)
            self._written.discard(key)
        self._staged = None

    def pretend(self, sequence: Sequence, length: int) -> bool:
        """Never possible: only a forward makes a state."""
        return False

    def truncate(self, key: int, length: int) -> None:
        if length < self.length(key):
            self._lengths[key] = length
            self._keep(self._states[key], length, ())

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        self.release(new_key)
        if key in self._states:
            self._settle(key)
            self._states[new_key] = self._copy(self._states[key])
            self._lengths[new_key] = self._lengths[key]
            if length is not None:
                self.truncate(new_key, length)

    def release(self, key: int) -> None:
        self._states.pop(key, None)
        self._lengths.pop(key, None)
        self._written.discard(key)

    @property
    def held_bytes(self) -> int:
        return sum(map(self._nbytes, self._states.values()))
