"""LearningInterval: decides in which steps the policy updates its estimates, so that learning takes a small share of a step.

Updating estimates takes a time that does not depend on the model, and it runs with the processor's caches full of weights. On a
large model that is negligible. On a small one it would be a noticeable part of a step, and then only one step in up to four is
learnt from.
"""

from __future__ import annotations

_UNNOTICED = 0.005
"""Share of a step's time that learning may take."""
_RAREST = 4
"""Longest mean interval, in steps."""
_FIRST = 64
"""Steps that are learnt from before the interval may grow."""
_SMOOTH = 0.1
"""Weight of the latest measurement of how long learning takes."""
_SWAY = (-1, 1, 0, 1, -1, 1, 0)
"""Added to the interval in turn, in steps. At equal intervals a text that repeats itself would always be seen at the same point.
The sum of these intervals is no multiple of their mean."""


class LearningInterval:
    """due: whether this step is learnt from. steps: steps since the last that was learnt from, this one included. mean_steps: the
    mean interval, in steps."""

    def __init__(self) -> None:
        self.due, self.steps = True, 1
        self.mean_steps, self._next = 1, 1
        self._skipped = self._promised = True
        self._learnt, self._share = 0, 0.0
        self._passed_s = 0.0

    def begin(self) -> bool:
        """A step begins. Returns whether it is learnt from."""
        if self.due:
            self.steps, self._passed_s = 0, 0.0
        self.steps += 1
        self._promised, self._skipped = self._skipped, False
        self.due = self._promised or self.steps >= self._next
        return self.due

    def skip(self, due: bool) -> bool:
        """No drafter is asked in this step. Returns `due`: whether it is learnt from, and so is the next step with drafts."""
        self.due, self._skipped = due, due or self._promised
        return due

    @property
    def overdue(self) -> bool:
        """Whether the longest interval has passed since the last step that was learnt from."""
        return self.steps >= _RAREST

    def passed(self, seconds: float) -> None:
        """A step that was not learnt from spent so many seconds in the part of a step in which others learn."""
        self._passed_s += seconds

    def mean(self, seconds: float) -> float:
        """Mean seconds in that part since the last step that was learnt from. seconds: of this step, which is learnt from."""
        return (self._passed_s + seconds) / self.steps

    def learnt(self, seconds: float, step_s: float) -> None:
        """Learning took so many seconds, in a step that took `step_s` without it."""
        self._learnt += 1
        self._share += _SMOOTH * (min(seconds / step_s, 1.0) - self._share)
        if self._learnt >= _FIRST:
            self.mean_steps = min(max(round(self._share / _UNNOTICED), 1), _RAREST)
            self._next = self.mean_steps + (_SWAY[self._learnt % len(_SWAY)] if self.mean_steps > 1 else 0)
