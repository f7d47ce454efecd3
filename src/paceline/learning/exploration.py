"""Exploration: decides when a drafter that is not thought to be worth its time is tried again, within a budget of seconds.

A trial takes time and may bring tokens. The net loss of all trials, in seconds, stays below a fixed share of all time. Trials
that pay for themselves cost nothing of that budget, so they follow one another and the drafter's worth is soon known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SHARE = 0.005
"""Share of all time that trials may lose. Drafters that are tried share it equally, or the dearer would never get its turn."""
_SAVED = 4
"""Trials for which time is saved up at most, however long none was needed and however much earlier ones gained."""
_ASKED_AGAIN = 0.25
"""Share of the time until a trial is due after which its cost is estimated again, as costs change."""


@dataclass(frozen=True)
class ExploratoryDraft:
    """A draft made on trial. drafter: that is tried. key: the request it drafts for."""

    drafter: str
    key: int


class Exploration:
    """The time budget of trials, over all drafters.

    begun: the trial of this step, if there is one. all_s: seconds of all steps so far.
    """

    def __init__(self) -> None:
        self.begun: ExploratoryDraft | None = None
        self.all_s = 0.0
        self._lost_s: dict[str, float] = {}
        """Drafter -> seconds that its trials have lost so far, net of what they gained."""
        self._not_before_s: dict[str, float] = {}
        """Drafter -> value of `all_s` before which it need not be asked whether a trial is due."""

    def may_be_due(self, drafter: str) -> bool:
        """Whether it is worth estimating what a trial of this drafter costs. There is at most one trial per step."""
        return self.begun is None and self.all_s >= self._not_before_s.get(drafter, 0.0)

    def begin(self, drafter: str, costs_s: Mapping[int, float], least_s: float) -> int | None:
        """Try a drafter in this step, for the first of these requests whose trial fits the budget. Returns its key, or None.

        costs_s: seconds that a trial takes, by request. least_s: seconds for a request whose text the drafter has read already.
        """
        lost_s = self._lost_s.setdefault(drafter, 0.0)
        share = _SHARE / len(self._lost_s)
        lost_s = max(lost_s, share * self.all_s - _SAVED * max(costs_s.values()))
        chosen = next((key for key, cost_s in costs_s.items() if lost_s + cost_s <= share * self.all_s), None)
        if chosen is not None:
            lost_s += costs_s[chosen]
            self.begun = ExploratoryDraft(drafter, chosen)
        else:
            # a request with much text to read must not hold up those that come after it
            left_s = (lost_s + least_s) / share - self.all_s
            self._not_before_s[drafter] = self.all_s + _ASKED_AGAIN * (left_s if left_s > 0.0 else least_s / share)
        self._lost_s[drafter] = lost_s
        return chosen

    def end(self, gain_s: float) -> None:
        """Credit what the trial of this step gained, in seconds; nothing where there was none."""
        if self.begun:
            self._lost_s[self.begun.drafter] -= gain_s
            self._not_before_s.pop(self.begun.drafter, None)
