"""DraftCurve: what a draft of so many levels for so many sequences takes; measured at the start, corrected by every draft.

A policy compares depths that it uses with depths that it does not: when the machine changes its speed, all of them change.
"""

from __future__ import annotations

from bisect import bisect_left

_FOLLOW, _CORRECT = 0.1, 0.03
"""How fast the curve follows the machine as a whole, and how fast one point of it moves against the others."""
_LEAST, _MOST = 0.25, 1.5
"""Shares of what was expected that a draft counts as where it takes less or more: what runs for the first time, is disturbed or
reads a prompt on its way takes many times as long, and says nothing of later drafts.
"""


def bucket(size: int) -> int:
    """The power of two at or above `size`: neighbouring shapes cost alike and share their measurements."""
    return 1 << max(size - 1, 0).bit_length()


class DraftCurve:
    """Seconds by depth and sequences, of one drafter. Between what was measured, time is taken to grow in proportion."""

    def __init__(self) -> None:
        self._depths: dict[int, list[int]] = {}
        """Bucket of sequences -> the depths that are known."""
        self._seconds: dict[int, list[float]] = {}
        """Bucket of sequences -> what they take, before the pace."""
        self._pace = 1.0

    @property
    def points(self) -> dict[tuple[int, int], float]:
        """(depth, sequences) -> seconds, as things stand."""
        return {
            (depth, size): seconds * self._pace
            for size, depths in self._depths.items()
            for depth, seconds in zip(depths, self._seconds[size], strict=True)
        }

    def put(self, depth: int, batch: int, seconds: float) -> None:
        """Set a point, measured on its own."""
        size = bucket(batch)
        depths, known = self._depths.setdefault(size, []), self._seconds.setdefault(size, [])
        at = bisect_left(depths, depth)
        if at < len(depths) and depths[at] == depth:
            known[at] = seconds / self._pace
        else:
            depths.insert(at, depth)
            known.insert(at, seconds / self._pace)

    def see(self, depth: int, batch: int, seconds: float) -> None:
        """A draft took so long. The machine as a whole is followed soon, the shape of the curve slowly."""
        expected = self(depth, batch)
        if expected == 0.0:
            self.put(depth, batch, seconds)
            return
        change = min(max(seconds / expected, _LEAST), _MOST) - 1.0
        self._pace *= 1.0 + _FOLLOW * change
        self.put(depth, batch, self(depth, batch) * (1.0 + _CORRECT * change))

    def __call__(self, depth: float, batch: int) -> float:
        """Seconds that such a draft, or one of so many levels in the mean, is expected to take; 0.0 if none was measured."""
        size = near = bucket(batch)
        depths = self._depths.get(size)
        if depths is None:
            if not self._depths:
                return 0.0
            near = min(self._depths, key=lambda known: (abs(known - size), known))
            depths = self._depths[near]
        known, at = self._seconds[near], bisect_left(depths, depth)
        if at == len(depths) or (at == 0 and depth < depths[0]):
            at = max(at - 1, 0)
            seconds = known[at] * depth / depths[at]
        elif depths[at] == depth:
            seconds = known[at]
        else:
            share = (depth - depths[at - 1]) / (depths[at] - depths[at - 1])
            seconds = known[at - 1] + share * (known[at] - known[at - 1])
        return seconds * self._pace * (size / near if size > near else 1.0)
