"""Slabs: the common part of caches that hold each sequence's keys and values in memory of its own, grown by doubling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence as Many
from typing import Generic, Self, TypeVar

from paceline.cache.base import Branching, KVCache, check_starts, kept_slots
from paceline.step import Step, Verdict

FIRST_CAPACITY = 128
AHEAD = 64
"""Tokens that a fork can go on for before it must grow."""


def capacity_for(slots: int) -> int:
    """The capacity that holds so many slots: the first one, doubled as often as it takes."""
    capacity = FIRST_CAPACITY
    while capacity < slots:
        capacity *= 2
    return capacity


class Slab(ABC):
    """One sequence's keys and values: `capacity` slots, room for `slots` at least, the first `length` committed; nbytes: of all
    layers."""

    def __init__(self, slots: int = 0) -> None:
        self.length = self.nbytes = 0
        self.capacity = capacity_for(slots)

    @abstractmethod
    def copied(self, length: int, slots: int) -> Self:
        """Another slab that holds the first `length` tokens, with room for `slots`."""

    @abstractmethod
    def grow(self, slots: int) -> None:
        """Make room for `slots`, by doubling; what is committed is kept."""

    @abstractmethod
    def move(self, slots: list[int], to: int) -> None:
        """Copy the rows of `slots` to the slots from `to` on."""


Held = TypeVar("Held", bound=Slab)


class SlabCache(KVCache, Generic[Held]):
    """Branching: TREE. Commit moves the accepted nodes' slots together; keys carry their rotation, so moving is exact.

    new: makes a slab with room for so many slots.
    """

    branching = Branching.TREE

    def __init__(self, new: Callable[[int], Held]) -> None:
        self._new = new
        self._slabs: dict[int, Held] = {}
        self._staged: Step | None = None

    def length(self, key: int) -> int:
        slab = self._slabs.get(key)
        return slab.length if slab else 0

    def reserve(self, key: int, slots: int) -> Held:
        """The slab of a sequence, with room for `slots`."""
        slab = self._slabs.get(key)
        if slab is None:
            slab = self._slabs[key] = self._new(slots)
        elif slots > slab.capacity:
            slab.grow(slots)
        return slab

    def stage(self, step: Step) -> None:
        check_starts(step, self)
        for segment in step.segments:
            # room for the whole prompt at once: growing in between would copy what was read so far, and hold it twice meanwhile
            self.reserve(segment.sequence.key, max(segment.end, len(segment.sequence.tokens)))
        self._staged = step

    def commit(self, verdicts: Many[Verdict]) -> None:
        if self._staged is None:
            raise ValueError("nothing is staged")
        for segment, (length, slots) in zip(self._staged.segments, kept_slots(self._staged, verdicts), strict=True):
            slab = self._slabs[segment.sequence.key]
            slab.length = length + len(slots)
            if slots and slots != list(range(length, slab.length)):
                slab.move(slots, length)
        self._staged = None

    def truncate(self, key: int, length: int) -> None:
        slab = self._slabs.get(key)
        if slab is not None:
            slab.length = min(slab.length, length)

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        source = self._slabs.get(key) or self._new(0)
        held = source.length if length is None else min(source.length, length)
        self._slabs[new_key] = source.copied(held, held + AHEAD)

    def move(self, key: int, new_key: int) -> None:
        self._slabs[new_key] = self._slabs.pop(key, None) or self._new(0)

    def release(self, key: int) -> None:
        self._slabs.pop(key, None)

    @property
    def held_bytes(self) -> int:
        return sum([slab.nbytes for slab in self._slabs.values()])
