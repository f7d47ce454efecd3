"""Objective: the service level objective (SLO) that a request must meet to count as good."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from paceline.bench.errors import BenchError
from paceline.bench.load.outcome import Outcome

NAMES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Objective:
    """Upper limits in seconds: of the time to first token, the time per output token and the whole request."""

    limits_s: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> Objective:
        """From "ttft=0.5,tpot=0.05". Raises BenchError."""
        limits_s: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            try:
                limit = float(value)
            except ValueError:
                limit = -1.0
            if name not in NAMES or name in limits_s or not (isfinite(limit) and limit > 0):
                raise BenchError(f"--slo {text}: write seconds such as ttft=0.5,tpot=0.05,e2e=10, each at most once")
            limits_s[name] = limit
        return cls(limits_s)

    def met(self, outcome: Outcome) -> bool:
        """Whether a whole answer came in time. Without text, its end counts as its first token; without a second token its time
        per token counts as 0."""
        if not outcome.answered:
            return False
        first = outcome.ended_s if outcome.first_s is None else outcome.first_s
        taken = {"ttft": first, "tpot": outcome.tpot_s or 0.0, "e2e": outcome.ended_s}
        return all(taken[name] <= limit for name, limit in self.limits_s.items())

    def __str__(self) -> str:
        return ", ".join(f"{name} <= {limit:g} s" for name, limit in self.limits_s.items())
