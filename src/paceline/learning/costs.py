"""Costs: what forwards and drafts take on this machine; measured at the start, corrected by steps, read by policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from paceline.learning.draft_curve import DraftCurve
from paceline.learning.forward_curve import ForwardCurve

_READ_ALONG = 16
"""Unread tokens of a text that take a drafter hardly longer than one: those since its last draft, or a few more."""
_SMOOTH, _MOST = 0.1, 4.0
"""Weight of the latest time that asking a lookup anew took, and how many times the estimate it counts as at most."""


class Timings(NamedTuple):
    """Seconds of one step by part, or of several. asked_s: the part of draft_s that the drafters took themselves."""

    draft_s: float
    forward_s: float
    verify_s: float
    commit_s: float
    asked_s: float = 0.0


_NOTHING = Timings(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Spent:
    """What one part of the steps took: milliseconds per step, and its share of the wall time."""

    ms_per_step: float
    share: float


@dataclass
class Costs:
    """Expected times, and sums of what all steps took."""

    curve: ForwardCurve = field(default_factory=ForwardCurve)
    """Forwards of decoding steps alone, by rows, as if all were of one sequence."""
    sequence_s: float = 0.0
    """Seconds that every further sequence adds to a forward, whatever its rows, at the pace at which it was measured."""
    drafts: dict[str, DraftCurve] = field(default_factory=dict)
    """Drafter -> seconds of asking it, by depth and sequences; of a lookup, for one sequence."""
    reading: dict[str, float] = field(default_factory=dict)
    """Drafter -> seconds per token of a text that it has not seen yet, paid when it is first asked for a request."""
    resumed: dict[str, float] = field(default_factory=dict)
    """Lookup -> seconds of asking it for a request of which it lacks much: for the first time, or after a pause."""
    read: dict[str, dict[int, int]] = field(default_factory=dict)
    """Drafter -> request -> tokens that its text had when it was asked for it last."""
    steps: int = 0
    spent: Timings = _NOTHING
    """Sums over all steps."""

    def observe(self, rows: int, batch: int, timings: Timings, *, learnt: bool) -> None:
        """Record a step's times. learnt: whether the curve follows them, not to be set for a step that read prompts."""
        self.steps += 1
        self.spent = Timings(*map(add, self.spent, timings))
        if learnt and batch == 1:
            self.curve.see(rows, timings.forward_s)
        elif learnt:
            # rows and sequences share the deviation from the expected time in proportion
            expected_s = self.forward_s(rows, batch) or timings.forward_s
            self.curve.see(rows, timings.forward_s * (self.curve(rows) or expected_s) / expected_s)

    def forward_s(self, rows: int, batch: int) -> float:
        """Seconds that a decoding step's forward is expected to take; 0.0 where nothing was ever measured."""
        return self.curve(rows) + (batch - 1) * self.sequence_s * self.curve.pace

    def measured(self, drafter: str, depth: int, batch: int, seconds: float) -> None:
        """Set the seconds of such a draft, measured on its own."""
        self.drafts.setdefault(drafter, DraftCurve()).put(depth, batch, seconds)

    def drafted(self, drafter: str, depth: int, lengths: Mapping[int, int], seconds: float) -> None:
        """Record the seconds that a drafter that runs a model took for drafts of up to `depth` levels.

        lengths: request -> tokens of its text. Where much of one had to be read first, as in a trial after a long pause, the
        time is ignored: it says nothing about drafts, and reading has its own cost.
        """
        if self._has_read(drafter, lengths):
            self.drafts.setdefault(drafter, DraftCurve()).see(depth, len(lengths), seconds)

    def looked_up(self, drafter: str, depth: int, lengths: Mapping[int, int], seconds: float) -> None:
        """Record the seconds that a lookup took for these requests, one after another. Arguments: as in `drafted`."""
        each_s = seconds / len(lengths)
        if self._has_read(drafter, lengths):
            self.drafts.setdefault(drafter, DraftCurve()).see(depth, 1, each_s)
        else:
            known = self.resumed.get(drafter, each_s)
            self.resumed[drafter] = known + _SMOOTH * (min(each_s, _MOST * known) - known)

    def _has_read(self, drafter: str, lengths: Mapping[int, int]) -> bool:
        """Whether a drafter had read these texts but for their last tokens; marks them as read."""
        read, knew = self.read.setdefault(drafter, {}), True
        for key, length in lengths.items():
            knew = knew and key in read and length - read[key] <= _READ_ALONG
            read[key] = length
        return knew

    def draft_s(self, drafter: str, depth: float, batch: int) -> float:
        """Seconds that a draft of this depth for `batch` sequences is expected to take; 0.0 where none was measured."""
        known = self.drafts.get(drafter)
        return known(depth, batch) if known else 0.0

    def start_from(self, measured: Costs, pace: float) -> None:
        """Take over what forwards and drafts were measured to take, on a machine that takes `pace` times as long by now."""
        self.curve, self.sequence_s = measured.curve, measured.sequence_s
        self.curve.pace *= pace
        self.drafts.update(measured.drafts)
        for curve in measured.drafts.values():
            curve.pace *= pace
        self.reading.update((drafter, seconds * pace) for drafter, seconds in measured.reading.items())

    def release(self, key: int) -> None:
        """Forget a request; what was learnt from it about costs stays."""
        for read in self.read.values():
            read.pop(key, None)

    def profile(self, wall_s: float) -> dict[str, Spent]:
        """Where `wall_s`, the time in which all steps ran, went by part; `other` is what the parts leave of it."""
        seconds = {
            "draft": self.spent.draft_s,
            "forward": self.spent.forward_s,
            "verify": self.spent.verify_s,
            "commit": self.spent.commit_s,
        }
        seconds["other"] = wall_s - sum(seconds.values())
        return {name: Spent(1e3 * s / max(self.steps, 1), s / wall_s) for name, s in seconds.items()}
