"""Rate search: the highest rate of requests that still meets an objective, by bisection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import sqrt

PRECISION = 0.05
"""Largest relative gap between the rate that holds and the one that fails at the end of a search."""
MOST_RUNS = 20


@dataclass(frozen=True)
class Found:
    """held: the highest rate that held; None if none did. failed: the lowest rate above it that failed; None if none did."""

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

    share_at: measures the share of requests that meet the objective at a rate. alone: whether requests hardly overlapped at the
    rate tried last: if that rate fails, so does every lower one.
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
