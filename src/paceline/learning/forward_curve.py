"""ForwardCurve: what a forward of so many rows takes on this machine; measured at the start, corrected by every step.

Rows are what verification pays for, so this curve decides how much speculation is worth (Sequoia, arXiv:2402.12374, section 4.3:
the best tree depends on the machine). It is measured behind a context of one length. Behind a longer one every row takes more, as
it attends to more keys: so much more is added as was measured per key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_SLOPE = 0.05
"""Share of one row's cost that a further row is taken to cost while nothing else is known."""
_FOLLOW, _CORRECT = 0.1, 0.02
"""How fast the curve follows the machine as a whole, and how fast one point of it moves against the others."""
_ODD = 4.0
"""A step that took so many times more or less than expected was disturbed and counts as this much."""
_LARGEST = 256
"""Points beyond so many rows are not kept."""
_EVEN = 16
"""From about so many rows on, arithmetic is all that a further row costs, and each costs the same; before, the reading of weights
hides some of it."""

_LEAST_S = 1e-9
"""No forward is taken to cost less."""


class ForwardCurve:
    """Seconds by rows, piecewise linear through its points; behind the last one with the slope before it where rows cost the same
    there, else in proportion."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._seconds: list[float] = []
        self.pace = 1.0
        """Ratio of recent seconds to those that were put."""
        self._table: list[float | None] = []
        """Seconds by rows up to `_LARGEST`, before the pace; None where a point nearby has moved since the last access.
        Policies read dozens of entries a step, and every step moves a point."""
        self.context, self.key_s, self.row_key_s = 0, 0.0, 0.0
        """Tokens behind which the points were measured. Seconds, before the pace, that every further one adds: once, and for each
        row."""
        self._beyond_s = self._beyond_row_s = 0.0
        """Seconds that the forwards at hand take for all further tokens, as above."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    @property
    def points(self) -> dict[int, float]:
        """Rows -> seconds, at the present pace."""
        return {rows: seconds * self.pace for rows, seconds in zip(self._rows, self._seconds, strict=True)}

    def behind(self, tokens: int, sequences: int) -> None:
        """Set the context of the forwards asked for from now on: how many tokens are cached, over how many sequences."""
        if self.row_key_s or self.key_s:
            beyond = tokens - self.context * sequences
            self._beyond_s, self._beyond_row_s = self.key_s * beyond, self.row_key_s * beyond / sequences

    def put(self, rows: int, seconds: float) -> None:
        """Set a point, measured on its own behind `context` tokens."""
        at = bisect_left(self._rows, rows)
        if at < len(self._rows) and self._rows[at] == rows:
            self._seconds[at] = seconds / self.pace
        else:
            self._rows.insert(at, rows)
            self._seconds.insert(at, seconds / self.pace)
        if len(self._rows) < 3:
            self._table = [None] * (_LARGEST + 1)
            return
        # entries before the first point follow from the first two, entries behind the last from that one
        first = self._rows[at - 1] if at > 1 else 0
        last = min(self._rows[at + 1], _LARGEST) if at + 1 < len(self._rows) else _LARGEST
        self._table[first : last + 1] = [None] * (last + 1 - first)
        if at == self._half and last < _LARGEST:
            # how steep it is behind the last point follows from this one
            self._table[self._rows[-1] :] = [None] * (_LARGEST + 1 - self._rows[-1])

    def see(self, rows: int, seconds: float) -> None:
        """Record the seconds of a step's forward. The pace follows the machine fast, the shape of the curve slowly."""
        if not self._rows:
            self.put(rows, seconds)
            return
        ratio = min(max(seconds / self(rows), 1 / _ODD), _ODD)
        self.pace *= 1.0 + _FOLLOW * (ratio - 1.0)
        if rows <= _LARGEST:
            self.put(rows, self._known(rows) * self.pace * (1.0 + _CORRECT * (ratio - 1.0)))

    def __call__(self, rows: int) -> float:
        """Seconds of a forward of `rows` rows; 0.0 where nothing was ever measured."""
        if not self._rows:
            return 0.0
        seconds = self._known(rows) if rows < len(self._table) else self._shape(rows)
        return max(seconds + self._beyond_s + rows * self._beyond_row_s, _LEAST_S) * self.pace

    def span(self, rows: int, count: int) -> list[float]:
        """Seconds of forwards of `rows` rows and of up to `count` more."""
        if rows + count < len(self._table):
            beyond_s, beyond_row_s, pace = self._beyond_s, self._beyond_row_s, self.pace
            return [
                max((self._known(size) if seconds is None else seconds) + beyond_s + size * beyond_row_s, _LEAST_S) * pace
                for size, seconds in enumerate(self._table[rows : rows + count + 1], rows)
            ]
        return [self(size) for size in range(rows, rows + count + 1)]

    def _known(self, rows: int) -> float:
        """An entry of the table."""
        seconds = self._table[rows]
        if seconds is None:
            seconds = self._table[rows] = self._shape(rows)
        return seconds

    def _shape(self, rows: int) -> float:
        """Seconds before the pace, from the points around."""
        at = bisect_left(self._rows, rows)
        if at < len(self._rows) and self._rows[at] == rows:
            return self._seconds[at]
        if len(self._rows) == 1:
            return self._seconds[0] * (1.0 + _SLOPE * (rows - 1)) / (1.0 + _SLOPE * (self._rows[0] - 1))
        if at == len(self._rows):
            return self._seconds[-1] + (rows - self._rows[-1]) * self._steepness
        low = max(at - 1, 0)
        high = low + 1
        share = (rows - self._rows[low]) / (self._rows[high] - self._rows[low])
        return max(self._seconds[low] + share * (self._seconds[high] - self._seconds[low]), _LEAST_S)

    @property
    def _half(self) -> int:
        """The place of the last point that has no more than half the rows of the last of all; -1 for none."""
        return bisect_right(self._rows, self._rows[-1] / 2) - 1

    @property
    def _steepness(self) -> float:
        """Seconds of a row behind the last point, before the pace: the slope over the last half of the known rows, since
        neighbouring points alone say little."""
        rows, seconds, half = self._rows[-1], self._seconds[-1], self._half
        if half < 0 or self._rows[half] < _EVEN:
            return seconds / rows
        return max(seconds - self._seconds[half], 0.0) / (rows - self._rows[half])
