"""DraftPauses: decides when drafting stops for a number of steps, because seconds per token are lower without any draft.

A step without drafts is slower among steps with drafts than in a run of steps without: the processor's caches are full of what
drafting needs. A comparison with single plain steps would therefore favour drafting. So now and then a few steps in a row go
without drafts, and their seconds per token are compared with those of the steps before. If plain decoding wins, drafting pauses
for a number of steps and is then tried again.
"""

from __future__ import annotations

from statistics import fmean, median

_SETTLING, _TIMED, _TIMED_AGAIN = 2, 4, 12
"""Plain steps until the processor's caches have settled; then steps that are timed; the same where drafts have just lost."""
_EVERY, _EVERY_AT_MOST = 50, 1600
"""Steps with drafts between two comparisons, at first and at most: doubled each time drafts win."""
_SHORTEST, _LONGEST = 64, 512
"""Steps of a pause, at first and at most: doubled each time drafts lose again."""
_LOST = 2
"""Comparisons in a row that drafts must lose before they pause: texts differ, and few steps are timed."""
_CLEARLY = 1.02
"""Factor by which tokens must come faster without drafts."""
_SMOOTH = 0.03
"""Weight of the latest step in the moving averages."""
_WARM = 0.8
"""A forward pass among plain steps is assumed to take no less than this share of its time among steps with drafts."""
_DISTURBED = 3.0
"""A step that took more than so many times as long as usual was disturbed, and counts as so many times as long."""


class DraftPauses:
    """Comparisons and pauses for one size of batch. active: whether no drafter is asked in this step."""

    def __init__(self) -> None:
        self.active = False
        self._asked, self._every = 0, _EVERY
        """Steps in which a drafter was asked since the last comparison; how many there are before the next."""
        self._left, self._length, self._lost = 0, _SHORTEST, 0
        """Steps left of the current pause; steps of the next one; comparisons in a row that drafts lost."""
        self._steps, self._step_s, self._tokens = 0, 0.0, 0.0
        """Steps in which drafts were asked for; moving averages of the seconds and the tokens of such a step."""
        self._timed: list[float] = []
        """Seconds per token of the plain steps of the current comparison."""

    @property
    def due(self) -> bool:
        """Whether drafters were asked in enough steps for the next comparison to begin."""
        return not self.active and self._asked >= self._every

    @property
    def timing(self) -> bool:
        """Whether this step is part of a comparison."""
        return self.active and not self._left

    def begin(self, least_s: float) -> None:
        """Begin a comparison, unless plain decoding cannot win it.

        least_s: seconds per token without drafts if a plain step were nothing but a forward pass, timed among steps with drafts.
        """
        self.active = 0.0 < _WARM * least_s * self._tokens < self._step_s

    def passed(self, asked: bool, reads: bool) -> bool:
        """Count a step. Returns whether its time may be given to `saw`: not within a pause, and not where it read prompts.

        asked: whether a drafter was asked in it. reads: whether it read prompts.
        """
        if self._left:
            self._left -= 1
            self.active = self._left > 0
            return False
        self._asked += asked and not reads
        return not reads

    def saw(self, seconds: float, tokens: int, steps: int = 1) -> float:
        """Observe a step's seconds and tokens. Returns the seconds per token without drafts where it ends a comparison, else 0.0.

        steps: how many steps it stands for.
        """
        if not self.active:
            self._saw_drafting(seconds, tokens, steps)
            return 0.0
        self._timed.append(seconds / tokens)
        if len(self._timed) < _SETTLING + (_TIMED_AGAIN if self._lost else _TIMED):
            return 0.0
        # a mean, as for steps with drafts: on a busy machine many steps are disturbed, which a median would not show
        timed = self._timed[_SETTLING:]
        most = _DISTURBED * median(timed)
        token_s = fmean([min(seconds, most) for seconds in timed])
        self._judge(token_s)
        return token_s

    def _saw_drafting(self, seconds: float, tokens: int, steps: int) -> None:
        self._steps += steps
        weight = max(1.0 - (1.0 - _SMOOTH) ** steps, steps / self._steps)
        self._step_s += weight * (min(seconds, _DISTURBED * self._step_s or seconds) - self._step_s)
        self._tokens += weight * (tokens - self._tokens)

    def _judge(self, token_s: float) -> None:
        """End a comparison: draft on, or pause. token_s: seconds per token without drafts."""
        self._timed.clear()
        self._asked = 0
        if _CLEARLY * token_s * self._tokens >= self._step_s:
            self.active, self._length, self._lost = False, _SHORTEST, 0
            self._every = min(2 * self._every, _EVERY_AT_MOST)
            return
        self._every, self._lost = _EVERY, self._lost + 1
        self.active = self._lost >= _LOST
        if self.active:
            self._left, self._length = self._length, min(2 * self._length, _LONGEST)
