"""StepTime: expected wall time of a step, drafters not counted, and the value of one more token, both in seconds.

The time of a forward pass is known by its rows (`costs`). The rest of a step, mostly Python, is learnt here, separately for steps
with and without drafts. One more token is worth the time that it would otherwise take; in a step that also reads prompts that is
the time of a row and not of a step.
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
"""Initial overhead of a step in seconds per share, forward pass and drafters not counted. A sequence is one share (`_shares`)."""
_STEP_ITSELF = 4
"""Shares of the overhead that a step has whatever its sequences."""
CLEARLY = 1.04
"""Factor by which drafts must be expected to be better than none, as estimates are no more precise."""
_IDLE_S = 2e-3
"""A step that begins so many seconds or more after the last one ended was preceded by idle time, which is not counted."""
_SMOOTH = 0.1
"""Weight of the latest step in the moving averages."""
_REGAIN = 0.01
"""Weight of a plain step among steps with drafts where it raises the overhead of plain steps: in a run of them it takes less."""
_CALM = 0.5
"""Weight of a run of plain steps that was timed: that is rare, and takes a few steps at a time."""


class StepTime:
    """batch: decoding sequences of this step. fed: rows that it feeds whatever is drafted. between_s: seconds between two steps,
    in which text is streamed and sequences are scheduled. overhead_s: seconds of a plain step besides its forward pass, per
    share; draft_overhead_s: how many more a step with drafts takes, its drafters not counted, per share (`_OTHER_S`)."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.batch = self.fed = 1
        self.between_s, self._ended_at = 0.0, -inf
        self.overhead_s, self.draft_overhead_s = _OTHER_S, 0.0
        self._behind_s = [_OTHER_S, _OTHER_S]
        """Seconds of what follows the forward pass in a plain step and in one with drafts, per share."""
        self._calm_at = defaultdict[int, float](lambda: 1.0)
        """By batch size, time of a plain step in a run of plain steps, relative to one among steps with drafts; at most 1."""
        self._token_s_at = defaultdict[int, float](float)
        """By batch size, seconds per token over all sequences, as a moving average."""
        self.sequence_s = 0.0
        """Seconds of a step per sequence, as a moving average."""
        self._reading = self._row_s = 0.0
        """Share of recent steps that read prompts; seconds of one more row in such a step."""

    def begin(self, rows: int, sequences: int) -> None:
        """A step begins. rows: those it feeds before anything is drafted. sequences: those that decode."""
        between_s = perf_counter() - self._ended_at
        if between_s < _IDLE_S:
            self.between_s += _SMOOTH * (between_s - self.between_s)
        self.fed, self.batch = rows, sequences
        if self.reads and sequences:
            self._row_s = max(self._costs.curve(rows + sequences) - self._costs.curve(rows), 0.0) / sequences

    def ended(self) -> float:
        """The step ended. Returns the time, in seconds of `perf_counter`."""
        self._ended_at = perf_counter()
        return self._ended_at

    @property
    def reads(self) -> bool:
        """Whether this step reads prompts."""
        return self.fed > self.batch

    @property
    def _shares(self) -> int:
        """Number of shares of this step's overhead."""
        return self.batch + _STEP_ITSELF

    @property
    def _reads_one(self) -> bool:
        """Whether the step reads the prompt of a single sequence: its overhead is that of a prompt, and is not learnt from."""
        return self.reads and self.batch == 1

    @property
    def drafting_s(self) -> float:
        """Seconds that a step with any drafts takes longer, drafters and rows not counted."""
        return self._shares * self.draft_overhead_s

    def total_drafting_s(self) -> float:
        """`drafting_s`, and what the step takes longer for not being in a run of plain steps, in seconds."""
        return self.drafting_s + self._step_s(self.batch, False) - self.step_s(self.batch, False)

    @property
    def kept_s(self) -> float:
        """The part of `drafting_s` that is saved where drafts were made and none of them is verified."""
        plainly_s, drafted_s = self._behind_s
        return self._shares * min(max(drafted_s - plainly_s, 0.0), self.draft_overhead_s)

    def step_s(self, rows: int, drafted: bool) -> float:
        """Expected seconds of a step with so many rows, its drafters not counted; always positive."""
        calm = 1.0 if drafted else self._calm_at[bucket(self.batch)]
        return calm * self._step_s(rows, drafted)

    def _step_s(self, rows: int, drafted: bool) -> float:
        """Expected seconds of a step with so many rows among steps with drafts."""
        beside_s = self._shares * (self.overhead_s + drafted * self.draft_overhead_s) + self.between_s
        return self._costs.forward_s(rows, self.batch) + beside_s + 1e-9

    def rows(self, trees: Many[DraftTree]) -> int:
        """Rows of a step that verifies these trees, those of prompts included."""
        return sum(map(len, trees)) + max(self.fed - len(trees), 0)

    @property
    def token_s(self) -> float:
        """Value of one more token, in seconds: the time that a token takes on average.

        Steps that read prompts are needed anyway, so there a token saves a row and no step.
        """
        # a token is worth no more than without drafts
        batch = max(self.batch, 1)
        token_s = min(self._token_s_at[bucket(batch)] or inf, self.step_s(batch, False) / batch)
        return token_s + self._reading * (min(self._row_s, token_s) - token_s)

    def worth(self, clearly: float) -> tuple[Callable[[float, float], float], float]:
        """The objective that drafts maximise, as a function of a step's tokens and seconds, and the factor by which drafts must
        be better than none: `clearly` where the objective is a ratio, else 1.

        It is tokens per second. But a step that reads prompts takes long whatever is drafted, and what is not drafted in it can
        be in the next one, where rows are cheap. There it is the time that the tokens would usually take, less the time of the
        step.
        """
        if not self.reads:
            return truediv, clearly
        token_s = self.token_s
        return lambda tokens, seconds: tokens * token_s - seconds, 1.0

    def saw_beside(self, seconds: float, drafted: bool, calm: bool) -> None:
        """Observe the seconds of a step besides its forward pass and drafters.

        drafted: whether it had drafts. calm: whether no drafter was asked in the steps before.
        """
        if self._reads_one:
            return
        before = self.overhead_s + drafted * self.draft_overhead_s
        # code that runs for the first time, or is disturbed, takes many times as long
        change = min(seconds / self._shares, 2 * before) - before
        if drafted:
            self.draft_overhead_s = max(self.draft_overhead_s + _SMOOTH * change, 0.0)
            return
        self.overhead_s += (_SMOOTH if calm or change < 0.0 else _REGAIN) * change
        # else drafts that are never verified because of this cost would never be found to cost less
        plainly_s, drafted_s = self._behind_s
        self._behind_s[True] -= _REGAIN * max(drafted_s - plainly_s, 0.0)
        if calm:
            # then what was learnt of plain steps is of one in a run of them
            size = bucket(self.batch)
            self._calm_at[size] += _SMOOTH * (1.0 - self._calm_at[size])

    def saw_behind(self, seconds: float, drafted: bool, steps: int) -> None:
        """Observe the seconds after the forward pass. drafted: whether the step had drafts. steps: how many it stands for."""
        if self._reads_one:
            return
        known_s = self._behind_s[drafted]
        weight = 1.0 - (1.0 - _SMOOTH) ** steps
        self._behind_s[drafted] += weight * (min(seconds / self._shares, 2 * known_s) - known_s)

    def saw_calm(self, token_s: float) -> None:
        """Observe the seconds per token in a run of plain steps; a single plain step takes longer."""
        size = bucket(self.batch)
        took = min(token_s * self.batch / self._step_s(self.batch, False), 1.0)
        self._calm_at[size] += _CALM * (took - self._calm_at[size])

    def saw(self, seconds: float, tokens: int) -> None:
        """Observe the seconds and tokens of a step. seconds: without what reading prompts took."""
        self._reading += _SMOOTH * (self.reads - self._reading)
        token_s, size = seconds / tokens, bucket(self.batch)
        before = self._token_s_at[size] or token_s
        self._token_s_at[size] = before + _SMOOTH * (token_s - before)
        sequence_s = seconds / max(self.batch, 1)
        self.sequence_s += _SMOOTH * (sequence_s - self.sequence_s) if self.sequence_s else sequence_s
