"""Turns: a round-robin queue over API keys for work that waits for a thread; and a key's fair share of a bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Condition
from typing import Any

Key = int | None
Job = tuple[Future[Any], Callable[[], Any]]


def has_room(key: Key, held: Mapping[Key, int], total: int, bound: int) -> bool:
    """Whether a key may hold more, `total` over all keys. One key must not fill a bound alone: beyond it, up to twice as much, a
    key that holds less than its share still may. held: by key, for keys that hold anything."""
    little = bool(held.keys() - {key}) and held.get(key, 0) < bound / (len(held) + 1)
    return total <= bound or (little and total <= 2 * bound)


class Turns:
    """A queue for several threads: jobs of one key run in order, and before each of them at most one job of every other key.
    most: jobs of one key that may wait."""

    def __init__(self, most: int) -> None:
        self._most, self._come = most, Condition()
        self._waiting = dict[Key, dict[Future[Any], Callable[[], Any]]]()
        """The next key comes first. Keys without jobs are removed, so a key that returns goes to the end."""

    def put(self, key: Key, future: Future[Any], work: Callable[[], Any]) -> bool:
        """Add a job; False if the key already has `most` waiting."""
        with self._come:
            jobs = self._waiting.get(key, {})
            if len(jobs) >= self._most:
                return False
            jobs[future] = work
            self._waiting[key] = jobs
            self._come.notify()
            return True

    def get(self) -> Job:
        """The next job; waits for one."""
        with self._come:
            while not self._waiting:
                self._come.wait()
            key = next(iter(self._waiting))
            jobs = self._waiting.pop(key)
            future = next(iter(jobs))
            work = jobs.pop(future)
            if jobs:
                self._waiting[key] = jobs
            return future, work

    def drop(self, key: Key, future: Future[Any]) -> None:
        """Remove a job whose result is not needed any more, if it still waits."""
        with self._come:
            jobs = self._waiting.get(key, {})
            jobs.pop(future, None)
            if not jobs:
                self._waiting.pop(key, None)
