"""Tryouts: trying drafters that are not thought to be worth it, so that they can come back.

A trial takes time and may bring tokens. What trials lose on the whole is bounded to a share of all time; those that pay for
themselves follow one another, and what a drafter is worth is soon known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SHARE = 0.005
"""Of all time, what trials may lose; drafters that are tried share it equally, or the dearer of two would never have its turn."""
_SAVED = 4
"""Trials that time is saved for at most, however long none was needed, or however much they brought."""
_ASKED_AGAIN = 0.25
"""Of the time until one is due, after which it is asked again: what it costs changes."""


@dataclass(frozen=True)
class Trial:
    """part: the drafter that is tried. key: the request."""

    part: str
    key: int


class Tryouts:
    """begun: the trial of this step, if there is one. all_s: seconds of all steps so far."""

    def __init__(self) -> None:
        self.begun: Trial | None = None
        self.all_s = 0.0
        self._lost_s: dict[str, float] = {}
        """Drafter -> what its trials lost so far."""
        self._not_before_s: dict[str, float] = {}
        """Drafter -> the time until which it is not worth asking whether it may be tried."""

    def may_be_due(self, part: str) -> bool:
        """Whether it is worth asking what a trial of this drafter costs; there is one a step at most."""
        return self.begun is None and self.all_s >= self._not_before_s.get(part, 0.0)

    def begin(self, part: str, costs_s: Mapping[int, float], least_s: float) -> int | None:
        """Try a drafter in this step, for the first of these requests that there is time for; which, if any.

        costs_s: what that takes, by request. least_s: what it takes for one of whose text the drafter lacks nothing.
        """
        lost_s = self._lost_s.setdefault(part, 0.0)
        share = _SHARE / len(self._lost_s)
        lost_s = max(lost_s, share * self.all_s - _SAVED * max(costs_s.values()))
        chosen = next((key for key, cost_s in costs_s.items() if lost_s + cost_s <= share * self.all_s), None)
        if chosen is not None:
            lost_s += costs_s[chosen]
            self.begun = Trial(part, chosen)
        else:
            # one of whom much is to be read is not to hold up those that come after it
            left_s = (lost_s + least_s) / share - self.all_s
            self._not_before_s[part] = self.all_s + _ASKED_AGAIN * (left_s if left_s > 0.0 else least_s / share)
        self._lost_s[part] = lost_s
        return chosen

    def end(self, gain_s: float) -> None:
        """See what the trial of this step brought, in seconds."""
        if self.begun:
            self._lost_s[self.begun.part] -= gain_s
            self._not_before_s.pop(self.begun.part, None)
