"""DraftCurve: what a draft of so many levels for so many sequences takes; measured at the start, corrected by every draft.

A policy compares depths that it uses with depths that it does not: when the machine changes its speed, all of them change.
"""

from __future__ import annotations

from bisect import bisect_left, insort

_FOLLOW, _CORRECT = 0.1, 0.03
"""How fast the curve follows the machine as a whole, and how fast one point of it moves against the others."""
_LEAST, _MOST = 0.25, 1.5
"""Bounds on a draft's time, as shares of the expected time: a draft that runs for the first time, is disturbed or reads a prompt
takes many times as long, and says nothing about later drafts.
"""


def bucket(size: int) -> int:
    """The power of two at or above `size`: neighbouring shapes cost alike and share their measurements."""
    return 1 << max(size - 1, 0).bit_length()


class DraftCurve:
    """Seconds by depth and sequences, of one drafter: linear between measured points, in proportion outside of them."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        """Buckets of sequences of which any depth is known, in rising order."""
        self._depths: dict[int, list[int]] = {}
        """Bucket of sequences -> the depths that are known."""
        self._seconds: dict[int, list[float]] = {}
        """Bucket of sequences -> seconds for these depths, before the pace."""
        self.pace = 1.0
        """Ratio of recent seconds to those that were put."""

    @property
    def points(self) -> dict[tuple[int, int], float]:
        """(depth, sequences) -> seconds, at the present pace."""
        return {
            (depth, size): seconds * self.pace
            for size, depths in self._depths.items()
            for depth, seconds in zip(depths, self._seconds[size], strict=True)
        }

    def put(self, depth: int, batch: int, seconds: float) -> None:
        """Set a point, measured on its own."""
        size = bucket(batch)
        if size not in self._depths:
            insort(self._sizes, size)
        depths, known = self._depths.setdefault(size, []), self._seconds.setdefault(size, [])
        at = bisect_left(depths, depth)
        if at < len(depths) and depths[at] == depth:
            known[at] = seconds / self.pace
        else:
            depths.insert(at, depth)
            known.insert(at, seconds / self.pace)

    def see(self, depth: int, batch: int, seconds: float) -> None:
        """Record the seconds of a draft. The pace follows the machine fast, the shape of the curve slowly."""
        expected = self(depth, batch)
        if expected == 0.0:
            self.put(depth, batch, seconds)
            return
        if bucket(batch) not in self._depths:
            self._begin(batch)
        change = min(max(seconds / expected, _LEAST), _MOST) - 1.0
        follow = 1.0 + _FOLLOW * change
        self.pace *= follow
        self.put(depth, batch, expected * follow * (1.0 + _CORRECT * change))

    def _begin(self, batch: int) -> None:
        """Set the expected seconds of so many sequences at every depth: from one depth alone, all would be in proportion."""
        depths = {depth for known in self._depths.values() for depth in known}
        for depth, seconds in [(depth, self(depth, batch)) for depth in depths]:
            self.put(depth, batch, seconds)

    def __call__(self, depth: float, batch: int) -> float:
        """Seconds that such a draft, or one of so many levels in the mean, is expected to take; 0.0 if none was measured."""
        if not self._sizes:
            return 0.0
        size = bucket(batch)
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes):
            return self._of(self._sizes[-1], depth) * size / self._sizes[-1] * self.pace
        high = self._sizes[at]
        seconds = self._of(high, depth)
        if at and high > size:
            low = self._sizes[at - 1]
            fewer_s = self._of(low, depth)
            seconds = fewer_s + (size - low) / (high - low) * (seconds - fewer_s)
        return seconds * self.pace

    def _of(self, size: int, depth: float) -> float:
        """Seconds before the pace, in a bucket of sequences that is known."""
        depths, known = self._depths[size], self._seconds[size]
        at = bisect_left(depths, depth)
        if at == len(depths) or (at == 0 and depth < depths[0]):
            at = max(at - 1, 0)
            return known[at] * depth / depths[at]
        if depths[at] == depth:
            return known[at]
        share = (depth - depths[at - 1]) / (depths[at] - depths[at - 1])
        return known[at - 1] + share * (known[at] - known[at - 1])
