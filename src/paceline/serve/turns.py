"""Turns: work that waits for a thread, of each API key in the order it came and of all keys by turns; and what is a share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Condition
from typing import Any

Key = int | None
Job = tuple[Future[Any], Callable[[], Any]]


def holds_little(key: Key, held: Mapping[Key, int], bound: int) -> bool:
    """Whether a key holds less than its share of what others have filled: the crowd of one key must not lock out all others.
    held: by key, of those that hold anything."""
    return bool(held.keys() - {key}) and held.get(key, 0) < bound / (len(held) + 1)


class Turns:
    """A queue for several threads. What a key put waits behind what it put before and, for each of these and itself, one job of
    every other key. most: jobs that may wait for one key."""

    def __init__(self, most: int) -> None:
        self._most, self._come = most, Condition()
        self._waiting = dict[Key, dict[Future[Any], Callable[[], Any]]]()
        """Whose turn it is comes first. No key is here without a job, so one that left nothing goes to the end."""

    def put(self, key: Key, future: Future[Any], work: Callable[[], Any]) -> bool:
        """False where the key has as many waiting as it may."""
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
        """A job for which nobody waits any more, if it still waits: it takes neither room nor a turn."""
        with self._come:
            jobs = self._waiting.get(key, {})
            jobs.pop(future, None)
            if not jobs:
                self._waiting.pop(key, None)
