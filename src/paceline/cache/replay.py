"""Snapshots: the cache of a model whose state cannot be rolled back (recurrent and convolutional layers).

A forward pass works on a copy of the last snapshot. Of the states that it passed through, commit keeps those on the committed
text. Rolling back returns to an older one: `length` then says how many tokens are held, and the next step feeds the rest again.
The state is opaque here, None before the first token. Branching: REPLAY.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from typing import Generic, TypeVar

from paceline.cache.base import Branching, KVCache, check_chains, check_starts, kept_slots
from paceline.sequence import Sequence
from paceline.step import Step, Verdict

State = TypeVar("State")

_SNAPSHOTS = 6
"""Kept per sequence, ever further apart, so that going back n tokens replays a few times as many."""


class ReplayCache(KVCache, Generic[State]):
    """copy: makes a state that later forwards do not touch. nbytes: the device memory that several states hold together. share:
    called with an older state and its length, and a newer one of the same text and its length: makes the older one reference
    what both have in common in the newer."""

    branching = Branching.REPLAY

    def __init__(
        self,
        copy: Callable[[State], State],
        nbytes: Callable[..., int],
        share: Callable[[State, int, State, int], None] = lambda *_: None,
    ) -> None:
        self._copy, self._nbytes, self._share = copy, nbytes, share
        self._snapshots: dict[int, list[tuple[int, State]]] = {}
        self._reached: dict[int, list[tuple[int, State]]] = {}
        self._staged: Step | None = None

    def length(self, key: int) -> int:
        snapshots = self._snapshots.get(key)
        return snapshots[-1][0] if snapshots else 0

    def working(self, key: int) -> State | None:
        """A copy of what is held, for a forward to run on; None where nothing is."""
        snapshots = self._snapshots.get(key)
        return self._copy(snapshots[-1][1]) if snapshots else None

    def reach(self, key: int, length: int, state: State) -> None:
        """Offer a state that the staged step passed through, after `length` tokens; no forward may touch it afterwards."""
        self._reached.setdefault(key, []).append((length, state))

    def stage(self, step: Step) -> None:
        check_starts(step, self)
        check_chains(step)
        self._reached.clear()
        self._staged = step

    def commit(self, verdicts: Many[Verdict]) -> None:
        if self._staged is None:
            raise ValueError("nothing is staged")
        for segment, (length, slots) in zip(self._staged.segments, kept_slots(self._staged, verdicts), strict=True):
            key = segment.sequence.key
            snapshots = self._snapshots.setdefault(key, [])
            snapshots += [(at, state) for at, state in self._reached.get(key, []) if at <= length + len(slots)]
            while len(snapshots) > _SNAPSHOTS:
                del snapshots[_superfluous([at for at, _ in snapshots])]
            for at, state in snapshots[:-1]:
                self._share(state, at, snapshots[-1][1], snapshots[-1][0])
        self._reached.clear()
        self._staged = None

    def pretend(self, sequence: Sequence, length: int) -> bool:
        """Never possible: only a forward makes a state."""
        return False

    def truncate(self, key: int, length: int) -> None:
        """Falls back to the longest snapshot that is no longer than `length`, or to nothing."""
        snapshots = self._snapshots.get(key)
        while snapshots and snapshots[-1][0] > length:
            snapshots.pop()

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        self._snapshots[new_key] = list(self._snapshots.get(key, []))
        if length is not None:
            self.truncate(new_key, length)

    def release(self, key: int) -> None:
        self._snapshots.pop(key, None)
        self._reached.pop(key, None)

    @property
    def held_bytes(self) -> int:
        distinct = {id(state): state for snapshots in self._snapshots.values() for _, state in snapshots}
        return self._nbytes(*distinct.values())


def _superfluous(lengths: Many[int]) -> int:
    """Which of the ascending snapshot lengths to drop: the one whose absence costs least, relative to how far back it is."""
    tip = lengths[-1]

    def cost(index: int) -> float:
        return (lengths[index + 1] - lengths[index - 1]) / (tip - lengths[index - 1])

    return min(range(1, len(lengths) - 1), key=cost)
