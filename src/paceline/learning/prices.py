"""Prices: what a step takes beside its drafters, and what it is worth to have one token more of it.

A forward's time is known by its rows (`costs`). What Python does beside it is learnt from the steps, of those that draft and of
those that do not. A token is worth the time that it would take otherwise; beside a prompt that is read that is a row's, and not
a step's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence as Many
from math import inf
from operator import truediv
from time import perf_counter

from paceline.learning.costs import Costs
from paceline.learning.draft_curve import bucket
from paceline.tree import DraftTree

_OTHER_S = 2e-5
"""Seconds of a step beside its forward and its drafters, before any was measured: per sequence, and as much as for so many
sequences for the step itself."""
_STEP_ITSELF = 4
CLEARLY = 1.04
"""Drafts must be better than none by more than what is known only so well."""
_IDLE_S = 2e-3
"""A step that begins so much later than the last one ended has been waited for."""
_SMOOTH = 0.1
_REGAIN = 0.01
"""How fast what a step without drafts takes beside its forward is believed to rise by one that is not calm: were there no drafts
for long, it would take less."""
_CALM = 0.5
"""The same of what steps without drafts take among others without: they are timed seldom, and a few at a time."""


class Prices:
    """batch: sequences that are drafted for in this step, asked about or not. fed: rows that it feeds whatever is drafted.
    between_s: seconds between two steps, in which texts are told and sequences picked. other_s: seconds of a step without drafts
    beside its forward, and more_s how many more it takes with some beside the drafters, both as `_OTHER_S`."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.batch = self.fed = 1
        self.between_s, self._ended_at = 0.0, -inf
        self.other_s, self.more_s = _OTHER_S, 0.0
        self._behind_s = [_OTHER_S, _OTHER_S]
        """Seconds of what follows the forward in a step without drafts, and in one with some, as `_OTHER_S`."""
        self._calm_at = defaultdict[int, float](lambda: 1.0)
        """By size of the batch, times what a step without drafts is thought to take that it did take among others without."""
        self._token_s_at = defaultdict[int, float](float)
        """By size of the batch, seconds that a token took, of late."""
        self.sequence_s = 0.0
        """Seconds of a step for each of its sequences, of late."""
        self._reading = self._row_s = 0.0
        """Share of steps, of late, that read prompts; what one more row takes in such a step."""

    def begin(self, rows: int, sequences: int) -> None:
        """A step begins that feeds so many rows before anything is drafted, and drafts for so many sequences."""
        between_s = perf_counter() - self._ended_at
        if between_s < _IDLE_S:
            self.between_s += _SMOOTH * (between_s - self.between_s)
        self.fed, self.batch = rows, sequences
        if self.reads and sequences:
            self._row_s = max(self._costs.curve(rows + sequences) - self._costs.curve(rows), 0.0) / sequences

    def ended(self) -> float:
        """It ended; when."""
        self._ended_at = perf_counter()
        return self._ended_at

    @property
    def reads(self) -> bool:
        """Whether this step reads prompts."""
        return self.fed > self.batch

    @property
    def _shares(self) -> int:
        """By how many what a step takes beside its forward is shared out."""
        return self.batch + _STEP_ITSELF

    @property
    def _reads_one(self) -> bool:
        """Whether one prompt is all that is read: then its text and its cache take their own time."""
        return self.reads and self.batch == 1

    @property
    def drafting_s(self) -> float:
        """Seconds that a step takes longer because anything is drafted in it, drafters and rows not counted."""
        return self._shares * self.more_s

    def unrest_s(self) -> float:
        """The same, and what it takes longer for not being one among others without drafts."""
        return self.drafting_s + self._step_s(self.batch, False) - self.step_s(self.batch, False)

    @property
    def kept_s(self) -> float:
        """Those of `drafting_s` that are spared where drafts are made, and none is looked at."""
        plainly_s, drafted_s = self._behind_s
        return self._shares * min(max(drafted_s - plainly_s, 0.0), self.more_s)

    def step_s(self, rows: int, drafted: bool) -> float:
        """Seconds of a step whose forward has so many rows, its drafters not counted; a little more than none."""
        calm = 1.0 if drafted else self._calm_at[bucket(self.batch)]
        return calm * self._step_s(rows, drafted)

    def _step_s(self, rows: int, drafted: bool) -> float:
        """The same, as if it were one among steps with drafts."""
        beside_s = self._shares * (self.other_s + drafted * self.more_s) + self.between_s
        return self._costs.forward_s(rows, self.batch) + beside_s + 1e-9

    def rows(self, trees: Many[DraftTree]) -> int:
        """Rows of a step over these trees: those of prompts come before those of drafts."""
        return sum(map(len, trees)) + max(self.fed - len(trees), 0)

    @property
    def token_s(self) -> float:
        """Seconds that a token takes, of late: what it is worth to have one more. Steps that read prompts come whether it was
        drafted or not; there it takes a row, and no step.
        """
        # a token is worth no more than without drafts
        batch = max(self.batch, 1)
        token_s = min(self._token_s_at[bucket(batch)] or inf, self.step_s(batch, False) / batch)
        return token_s + self._reading * (min(self._row_s, token_s) - token_s)

    def worth(self, clearly: float) -> tuple[Callable[[float, float], float], float]:
        """What so many tokens in a step of so many seconds are worth, more is better; and by how much drafts must be better,
        `clearly` where that is told by a ratio.

        Tokens a second; but a step that reads prompts takes long whatever is drafted, and what is not drafted in it can be in the
        next, where rows are cheap: there it is the time that tokens usually take, less this one.
        """
        if not self.reads:
            return truediv, clearly
        token_s = self.token_s
        return lambda tokens, seconds: tokens * token_s - seconds, 1.0

    def saw_beside(self, seconds: float, drafted: bool, calm: bool) -> None:
        """See what a step took beside its forward and its drafters. drafted: whether anything was. calm: whether nobody was asked
        for drafts for a while."""
        if self._reads_one:
            return
        before = self.other_s + drafted * self.more_s
        # what runs for the first time, or is disturbed, takes many times as long
        change = min(seconds / self._shares, 2 * before) - before
        if drafted:
            self.more_s = max(self.more_s + _SMOOTH * change, 0.0)
            return
        self.other_s += (_SMOOTH if calm or change < 0.0 else _REGAIN) * change
        # what nobody looks at because of it would else never be found to cost less
        plainly_s, drafted_s = self._behind_s
        self._behind_s[True] -= _REGAIN * max(drafted_s - plainly_s, 0.0)
        if calm:
            # then what is known of such steps is of one among others
            size = bucket(self.batch)
            self._calm_at[size] += _SMOOTH * (1.0 - self._calm_at[size])

    def saw_behind(self, seconds: float, drafted: bool, steps: int) -> None:
        """See what followed the forward in a step. drafted: whether anything was. steps: for how many it stands."""
        if self._reads_one:
            return
        known_s = self._behind_s[drafted]
        weight = 1.0 - (1.0 - _SMOOTH) ** steps
        self._behind_s[drafted] += weight * (min(seconds / self._shares, 2 * known_s) - known_s)

    def saw_calm(self, token_s: float) -> None:
        """See what a token took in steps without drafts, one behind another; what is seen of single ones takes longer."""
        size = bucket(self.batch)
        took = min(token_s * self.batch / self._step_s(self.batch, False), 1.0)
        self._calm_at[size] += _CALM * (took - self._calm_at[size])

    def saw(self, seconds: float, tokens: int) -> None:
        """See what a step took, and brought; a forward that read prompts too is taken for one that did not."""
        self._reading += _SMOOTH * (self.reads - self._reading)
        token_s, size = seconds / tokens, bucket(self.batch)
        before = self._token_s_at[size] or token_s
        self._token_s_at[size] = before + _SMOOTH * (token_s - before)
        sequence_s = seconds / max(self.batch, 1)
        self.sequence_s += _SMOOTH * (sequence_s - self.sequence_s) if self.sequence_s else sequence_s
