"""Rate search: the highest rate of requests that still holds an objective, by bisection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import sqrt

PRECISION = 0.05
"""How far the rate that fails may be above the one that holds."""
MOST_RUNS = 20


@dataclass(frozen=True)
class Found:
    """held: the highest rate seen to hold; None if none did. failed: the lowest seen to fail above it; None if none did."""

    held: float | None
    failed: float | None
    runs: int


async def highest_rate(
    share_at: Callable[[float], Awaitable[float]],
    first: float,
    needed_share: float,
    highest: float,
    alone: Callable[[float], bool] = lambda rate: False,
) -> Found:
    """Double or halve from `first` until one rate holds and another fails, then halve the ratio between them.

    share_at: the share of requests that met the objective at a rate. alone: whether hardly a request met another at the rate that
    was tried last: what fails then fails at every lower one.
    """
    held = failed = None
    rate = first
    for run in range(1, MOST_RUNS + 1):
        if await share_at(rate) >= needed_share:
            held = rate
        else:
            failed = rate
            if alone(rate):
                return Found(held, failed, run)
        if (held and failed and failed <= held * (1 + PRECISION)) or held == highest:
            return Found(held, failed, run)
        halfway = float(f"{sqrt(held * failed):.4g}") if held and failed else None
        rate = halfway or (rate / 2 if failed else min(2 * rate, highest))
    return Found(held, failed, MOST_RUNS)
