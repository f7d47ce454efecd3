"""Threads: run the parts of a step on one thread each, all at the same time, since they wait for one another at barriers.

This is not OpenMP, which may provide fewer threads than requested, and shares their number with torch. Workers spin for a
millisecond between steps, longer than Python and a small drafter need, and then sleep on a condition variable: waking takes as
long as a tenth of a small model's forward pass.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from functools import cache
from threading import Lock, Thread
from time import perf_counter
from typing import Any

import numpy as np

from paceline.kernels.native.contention import Contention
from paceline.kernels.native.entries import IDLE, LEAD, WORK
from paceline.kernels.native.layout import POOL, TIMES, word_of, words

CONTENTION = Contention()
"""Shared by all pools, since they share the machine's cores."""
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
_SPIN_S = 1e-3
"""Seconds that a waiting thread spins."""
_TURNS_TIMED = 5000
_PART, _RECORD, _TOOK, _LOST = (word_of(POOL, name) for name in ("part", "record", "took", "lost"))


def granted(threads: int) -> int:
    """How many of so many threads are available: fewer if the system starts no more for this process."""
    return _pool(os.getpid(), threads).threads if threads > 1 else 1


def spread(part: int, threads: int, record: int) -> None:
    """Call the function at address `part`, void(thread, record), on `threads` threads, at most `machine.most_threads()`, and wait
    for all.

    Releases the GIL. Raises RuntimeError if fewer are `granted`: the others would wait for the missing ones.
    """
    if threads == 1:
        _function(part)(0, record)
        return
    pool = _pool(os.getpid(), threads)
    if pool.threads < threads:
        raise RuntimeError(f"no more than {pool.threads} of {threads} threads can be started")
    pool.run(part, record)


@cache
def _function(address: int) -> Any:
    return _CALL(address)


_pools: dict[tuple[int, int], _Pool] = {}
"""Process id and number of threads -> the pool of so many, or of as many as could be started. By process, because a forked
process has the memory of its parent's pools, but not their threads."""
_opening = Lock()
_begun: list[_Pool] = []
"""Every pool that may have started threads, kept alive."""


def _renew() -> None:
    """Replace the lock in a forked process, which lacks the thread that may have held it."""
    global _opening
    _opening = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def _pool(process: int, threads: int) -> _Pool:
    pool = _pools.get((process, threads))
    if pool is None:
        # two callers must not both create one: only one pool is kept, but the other's workers would hold its address
        with _opening:
            pool = _pools.get((process, threads))
            if pool is None:
                pool = _Pool(threads)
                _pools[process, pool.threads] = _pools[process, threads] = pool
    return pool


class _Pool:
    """threads: number of threads, including the caller, which runs part 0; at most as many as requested."""

    def __init__(self, threads: int) -> None:
        self._record = np.zeros(1, POOL)
        self._at = self._record.ctypes.data
        self._words = words(self._record)
        self._times = np.zeros((threads, TIMES), np.int64)
        self._record["times"] = self._times.ctypes.data
        # room for any system's mutex and condition variable, each on its own cache lines
        self._locks = np.zeros(64, np.int64)
        self._record["patience"] = _patience()
        self._record["wall_clock"], self._record["own_clock"] = time.CLOCK_MONOTONIC, time.CLOCK_THREAD_CPUTIME_ID
        self._record["mutex"], self._record["condition"] = self._locks.ctypes.data, self._locks[32:].ctypes.data
        library = ctypes.CDLL(None)
        library.pthread_mutex_init(ctypes.c_void_p(self._locks.ctypes.data), None)
        library.pthread_cond_init(ctypes.c_void_p(self._locks[32:].ctypes.data), None)
        self._owner = Lock()
        self._lead = _function(LEAD.address)
        work = _function(WORK.address)
        # if starting them is interrupted, threads that were started go on using this memory
        _begun.append(self)
        self.threads = 1
        # if no more threads can be started, steps run on the existing ones
        with suppress(RuntimeError):
            for thread in range(1, threads):
                Thread(target=work, args=(thread, self._at), daemon=True, name=f"paceline-{thread}").start()
                self.threads += 1
        self._record["threads"] = self.threads

    def run(self, part: int, record: int) -> None:
        numbers = self._words
        with self._owner:
            numbers[_PART], numbers[_RECORD] = part, record
            self._lead(0, self._at)
            CONTENTION.observe(self.threads, numbers[_TOOK] / 1e9, numbers[_LOST] / 1e9)


@cache
def _patience() -> int:
    """Turns of idling that take about `_SPIN_S`, measured, since the length of a pause differs tenfold between processors."""
    idle, counter = _function(IDLE.address), np.zeros(1, np.int64)
    seconds = []
    for _ in range(5):
        began = perf_counter()
        idle(_TURNS_TIMED, counter.ctypes.data)
        seconds.append(perf_counter() - began)
    # disturbances only make a measurement longer, so take the least
    return int(_TURNS_TIMED * _SPIN_S / min(seconds))
