"""Lessons: which steps with drafts are learnt from.

What a step teaches is learnt in a time that does not depend on the model, and finds the processor's caches full of weights. On a
large model that is nothing; on a small one it is a part of the step that shows, and then one step in a few is learnt from.
"""

from __future__ import annotations

_UNNOTICED = 0.005
"""Share of a step that learning may take."""
_RAREST = 4
"""Steps from one lesson to the next, at most, in the mean."""
_FIRST = 64
"""Lessons until much is known: up to then every step is one in which somebody may be asked."""
_SMOOTH = 0.1
_SWAY = (-1, 1, 0, 1, -1, 1, 0)
"""Lessons do not come at equal distances: texts that go round in circles would be seen at one point of theirs. Of so many
distances the sum is no multiple of the mean."""


class Lessons:
    """due: whether this step is learnt from. steps: those from the last lesson to this step, this one counted. apart: those from
    one lesson to the next, in the mean."""

    def __init__(self) -> None:
        self.due, self.steps = True, 1
        self.apart, self._next = 1, 1
        self._rested = self._promised = True
        self._learnt, self._share = 0, 0.0
        self._passed_s = 0.0

    def begin(self) -> bool:
        """A step begins. Returns whether it is learnt from."""
        if self.due:
            self.steps, self._passed_s = 0, 0.0
        self.steps += 1
        self._promised, self._rested = self._rested, False
        self.due = self._promised or self.steps >= self._next
        return self.due

    def rest(self, due: bool) -> bool:
        """Nobody is asked in this step. Returns `due`: whether it is learnt from, and so is the next in which somebody may be."""
        self.due, self._rested = due, due or self._promised
        return due

    @property
    def overdue(self) -> bool:
        """Whether as many steps passed since the last as do at most."""
        return self.steps >= _RAREST

    def passed(self, seconds: float) -> None:
        """A step that was not learnt from took so long, in a part of it where others are."""
        self._passed_s += seconds

    def mean(self, seconds: float) -> float:
        """What the steps since the last lesson took in that part on average. seconds: what the lesson took."""
        return (self._passed_s + seconds) / self.steps

    def learnt(self, seconds: float, step_s: float) -> None:
        """A lesson took so long, of a step that took `step_s` without it."""
        self._learnt += 1
        self._share += _SMOOTH * (min(seconds / step_s, 1.0) - self._share)
        if self._learnt >= _FIRST:
            self.apart = min(max(round(self._share / _UNNOTICED), 1), _RAREST)
            self._next = self.apart + (_SWAY[self._learnt % len(_SWAY)] if self.apart > 1 else 0)
