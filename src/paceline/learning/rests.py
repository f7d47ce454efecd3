"""Rests: stretches without any draft, because tokens come sooner so.

What a step without drafts takes is not seen among steps with some: it takes longer there, and its forward as well, for caches are
full of what drafting needs. Whoever compares drafts with such steps alone goes on drafting for being worth it against them. So
now and then nobody is asked for a few steps, and their tokens are timed against those of the steps before. Where they came
sooner nobody is asked for a while, and then drafts are tried again.
"""

from __future__ import annotations

from statistics import fmean, median

_SETTLING, _TIMED, _TIMED_AGAIN = 2, 4, 12
"""Steps without drafts until caches have settled, and those that are timed then; where drafts have just lost, more of them."""
_EVERY, _EVERY_AT_MOST = 50, 1600
"""Steps with drafts after which some without are timed: twice as many each time that drafts win."""
_SHORTEST, _LONGEST = 64, 512
"""Steps of a rest: twice as many each time that drafts lose again."""
_LOST = 2
"""Times in a row that drafts must lose: texts differ, and few steps are timed."""
_CLEARLY = 1.02
"""Times by which tokens must come sooner without drafts."""
_SMOOTH = 0.03
_WARM = 0.8
"""Share of what a forward takes among drafts that it may take without."""
_DISTURBED = 3.0
"""A step that took so many times longer than those before was disturbed and counts as this much."""


class Rests:
    """now: whether nobody is to be asked in this step."""

    def __init__(self) -> None:
        self.now = False
        self._asked, self._every = 0, _EVERY
        """Steps in which somebody was asked since some were timed last; how many there are before some are again."""
        self._left, self._length, self._lost = 0, _SHORTEST, 0
        """Steps left of a rest; of how many the next one is; times in a row that drafts lost."""
        self._steps, self._step_s, self._tokens = 0, 0.0, 0.0
        """Steps while drafts were asked for; seconds and tokens of one, of late."""
        self._timed: list[float] = []
        """Seconds of a token in steps without drafts."""

    @property
    def due(self) -> bool:
        """Whether somebody was asked in enough steps for some without drafts to be timed."""
        return not self.now and self._asked >= self._every

    @property
    def timing(self) -> bool:
        """Whether this step is one of those that are timed."""
        return self.now and not self._left

    def begin(self, least_s: float) -> None:
        """Ask nobody in the next steps, unless that is hopeless. least_s: seconds of a token without drafts, were such a step a
        forward as among drafts and nothing else."""
        self.now = 0.0 < _WARM * least_s * self._tokens < self._step_s

    def passed(self, asked: bool, reads: bool) -> bool:
        """A step passed. asked: whether somebody was asked for drafts in it. reads: whether it read prompts. Returns whether what
        it took may be seen: in a rest that is not, nor what it takes to read."""
        if self._left:
            self._left -= 1
            self.now = self._left > 0
            return False
        self._asked += asked and not reads
        return not reads

    def saw(self, seconds: float, tokens: int, steps: int = 1) -> float:
        """See what such a step took. Returns seconds of a token without drafts if it is the last to be timed, else 0.0.

        steps: those for which it stands.
        """
        if not self.now:
            self._saw_drafting(seconds, tokens, steps)
            return 0.0
        self._timed.append(seconds / tokens)
        if len(self._timed) < _SETTLING + (_TIMED_AGAIN if self._lost else _TIMED):
            return 0.0
        # a mean, as that of steps with drafts is: on a busy machine many steps are disturbed, and a median is not
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
        """Go on as tokens come sooner. token_s: seconds of one without drafts."""
        self._timed.clear()
        self._asked = 0
        if _CLEARLY * token_s * self._tokens >= self._step_s:
            self.now, self._length, self._lost = False, _SHORTEST, 0
            self._every = min(2 * self._every, _EVERY_AT_MOST)
            return
        self._every, self._lost = _EVERY, self._lost + 1
        self.now = self._lost >= _LOST
        if self.now:
            self._left, self._length = self._length, min(2 * self._length, _LONGEST)
