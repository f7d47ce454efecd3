"""Contention: use fewer threads while other work on the machine takes cores from some of them.

Threads of a step wait for one another many times, so one that has to share its core makes all of them as slow as itself, and
slower than a single thread with its own core. The number of threads changes no bit of the result, so it can change at any time:
it is halved after steps that mostly waited, doubled some time later, and if that was too early, the next pause is longer.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

_WINDOW_S = 0.05
"""Seconds of steps that are evaluated together: the system may take a core away for a few milliseconds at any time."""
_MOST_LOST = 0.4
"""The share of a window that may be lost: half the threads would take almost twice as long."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.6
"""Seconds until more threads are tried: long enough that failed attempts cost little, short enough to go unnoticed."""


class Contention:
    """now: a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._limit = self._too_many = 0
        self._until, self._pause = 0.0, _FIRST_PAUSE_S
        self._took = self._lost = 0.0
        self.times = 0
        """How often there were too many threads."""

    def allowed(self, threads: int) -> int:
        """How many of so many threads to run a step on: all, or a smaller power of two."""
        if not 0 < self._limit < threads:
            return threads
        if self._now() >= self._until:
            self._limit *= 2
            self._until = self._now() + self._pause
            self._took = self._lost = 0.0
        return min(self._limit, threads)

    def observe(self, threads: int, took: float, lost: float) -> None:
        """Record a step. threads: how many it ran on, more than one. took: seconds. lost: seconds in which one thread had no
        core.
        """
        self._took += took
        self._lost += lost
        if self._took < _WINDOW_S:
            return
        if self._lost > _MOST_LOST * self._took:
            self.times += 1
            self._too_many = threads
            self._limit = 1 << (threads - 1).bit_length() - 1
            self._until = self._now() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        elif threads >= self._too_many:
            self._pause = _FIRST_PAUSE_S
        self._took = self._lost = 0.0
