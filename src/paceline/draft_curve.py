"""DraftCurve: what a draft of so many levels for so many sequences takes; measured at the start, corrected by every draft.

A policy compares depths that it uses with depths that it does not: when the machine changes its speed, all of them change.
"""

from __future__ import annotations

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
        self._seconds: dict[tuple[int, int], float] = {}
        """(depth, bucket of sequences) -> seconds, before the pace."""
        self._pace = 1.0

    @property
    def points(self) -> dict[tuple[int, int], float]:
        """(depth, sequences) -> seconds, as things stand."""
        return {shape: seconds * self._pace for shape, seconds in self._seconds.items()}

    def put(self, depth: int, batch: int, seconds: float) -> None:
        """Set a point, measured on its own."""
        self._seconds[depth, bucket(batch)] = seconds / self._pace

    def see(self, depth: int, batch: int, seconds: float) -> None:
        """A draft took so long. The machine as a whole is followed soon, the shape of the curve slowly."""
        expected = self(depth, batch)
        if expected == 0.0:
            self.put(depth, batch, seconds)
            return
        change = min(max(seconds / expected, _LEAST), _MOST) - 1.0
        self._pace *= 1.0 + _FOLLOW * change
        self.put(depth, batch, self(depth, batch) * (1.0 + _CORRECT * change))

    def __call__(self, depth: int, batch: int) -> float:
        """Seconds that such a draft is expected to take; 0.0 where nothing was ever measured."""
        known, size = self._seconds, bucket(batch)
        if (exact := known.get((depth, size))) is not None:
            return exact * self._pace
        if not known:
            return 0.0
        near = min((b for _, b in known), key=lambda b: (abs(b - size), b))
        depths = sorted(d for d, b in known if b == near)
        low = max((d for d in depths if d <= depth), default=depths[0])
        high = min((d for d in depths if d >= depth), default=depths[-1])
        if low == high:
            seconds = known[low, near] * depth / low
        else:
            share = (depth - low) / (high - low)
            seconds = known[low, near] + share * (known[high, near] - known[low, near])
        return seconds * self._pace * (size / near if size > near else 1.0)
