"""Threads: one part of a step on each, all of them at once, for they wait for one another inside.

A pool of our own, because OpenMP may give fewer threads than were asked for, and shares their number with torch. Workers spin
for a millisecond between steps, longer than Python and a small drafter need, and sleep on a condition variable after that: to be
woken takes as long as a tenth of a small model's forward.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from threading import Lock, Thread
from time import perf_counter
from typing import Any

import numpy as np

from paceline.kernels.native.compiled import SOURCES, kept
from paceline.kernels.native.layout import POOL
from paceline.kernels.native.memory import PART, arrived, awaited, carray, idled, pointer, run_part, seen

import numba  # isort: skip  (after `vectors`)
from numba import types  # isort: skip

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
_SPIN_S = 1e-3
"""Seconds for which a thread that waits spins."""
_TURNS_TIMED = 5000
_lock, _unlock = (types.ExternalFunction(f"pthread_mutex_{verb}", types.int32(types.int64)) for verb in ("lock", "unlock"))
_wait = types.ExternalFunction("pthread_cond_wait", types.int32(types.int64, types.int64))
_wake = types.ExternalFunction("pthread_cond_broadcast", types.int32(types.int64))


def most_threads() -> int:
    """Threads that can run at once on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(part: int, threads: int, record: int) -> None:
    """Call the PART at an address on `threads` threads, at most `most_threads()`, and wait for all. Releases the GIL."""
    if threads == 1:
        _function(part)(0, record)
    else:
        _pool(os.getpid(), threads).run(part, record)


@cache
def _function(address: int) -> Any:
    return _CALL(address)


_pools: dict[tuple[int, int], _Pool] = {}
"""Process and threads -> pool: a forked process has the memory of its parent's pools, but not their threads."""
_opening = Lock()
_begun: list[_Pool] = []
"""Every pool that may have a thread."""


def _pool(process: int, threads: int) -> _Pool:
    pool = _pools.get((process, threads))
    if pool is None:
        # two callers must not both make one: workers hold the address of a pool that nobody would keep
        with _opening:
            pool = _pools.get((process, threads))
            if pool is None:
                pool = _pools[process, threads] = _Pool(threads)
    return pool


class _Pool:
    """`threads` counts the caller, who does part 0."""

    def __init__(self, threads: int) -> None:
        self._record = np.zeros(1, POOL)
        # room for any system's mutex and condition variable, each on cache lines of its own
        self._locks = np.zeros(64, np.int64)
        self._record["threads"], self._record["patience"] = threads, _patience()
        self._record["mutex"], self._record["condition"] = self._locks.ctypes.data, self._locks[32:].ctypes.data
        library = ctypes.CDLL(None)
        library.pthread_mutex_init(ctypes.c_void_p(self._locks.ctypes.data), None)
        library.pthread_cond_init(ctypes.c_void_p(self._locks[32:].ctypes.data), None)
        self._owner = Lock()
        self._lead = _function(_lead_part(SOURCES).address)
        work = _function(_work_part(SOURCES).address)
        # where one cannot be started, those before it go on in this memory
        _begun.append(self)
        for thread in range(1, threads):
            Thread(target=work, args=(thread, self._record.ctypes.data), daemon=True, name=f"paceline-{thread}").start()

    def run(self, part: int, record: int) -> None:
        with self._owner:
            self._record["part"], self._record["record"] = part, record
            self._lead(0, self._record.ctypes.data)


@cache
def _patience() -> int:
    """Turns of idling that take about `_SPIN_S`: how long a pause is differs tenfold between processors."""
    idle, counter = _function(_idle_part(SOURCES).address), np.zeros(1, np.int64)
    seconds = []
    for _ in range(5):
        began = perf_counter()
        idle(_TURNS_TIMED, counter.ctypes.data)
        seconds.append(perf_counter() - began)
    # what is disturbed takes longer, never shorter
    return int(_TURNS_TIMED * _SPIN_S / min(seconds))


def _idle_part(sources: str) -> Any:
    def idle(turns, address):
        _ = sources
        idled(address, 0, turns)

    return kept(lambda disk: numba.cfunc(PART, cache=disk, nogil=True, error_model="numpy")(idle))


def _work_part(sources: str) -> Any:
    def work(thread, address):
        _ = sources
        pool = carray(pointer(address), 1, POOL)
        turn = address + _TURN
        done = 0
        while True:
            idled(turn, done, pool[0].patience)
            if seen(turn) == done:
                _lock(pool[0].mutex)
                while seen(turn) == done:
                    _wait(pool[0].condition, pool[0].mutex)
                _unlock(pool[0].mutex)
            done += 1
            run_part(pool[0].part, thread, pool[0].record)
            arrived(address + _FINISHED, 1)

    return kept(lambda disk: numba.cfunc(PART, cache=disk, nogil=True, error_model="numpy")(work))


def _lead_part(sources: str) -> Any:
    def lead(thread, address):
        _ = sources
        pool = carray(pointer(address), 1, POOL)
        pool[0].finished = 0
        _lock(pool[0].mutex)
        arrived(address + _TURN, 1)
        _wake(pool[0].condition)
        _unlock(pool[0].mutex)
        run_part(pool[0].part, thread, pool[0].record)
        awaited(address + _FINISHED, pool[0].threads - 1, pool[0].patience)

    return kept(lambda disk: numba.cfunc(PART, cache=disk, nogil=True, error_model="numpy")(lead))


_OFFSETS: Any = POOL.fields
_TURN, _FINISHED = int(_OFFSETS["turn"][1]), int(_OFFSETS["finished"][1])
