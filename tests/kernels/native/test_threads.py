"""The pool runs every part exactly once, all of them concurrently, however it is called."""

from __future__ import annotations

import ctypes
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Thread
from time import sleep
from typing import Any

import numba
import numpy as np
import pytest
from numba import types

from native import THREADS
from paceline.kernels.compiled import SOURCES
from paceline.kernels.native import threads as native_threads
from paceline.kernels.native.memory import arrived, barrier, carray, pointer
from paceline.kernels.native.threads import granted, spread
from paceline.machine import most_threads

ROUNDS = 3


def _meeting(sources: str) -> Any:
    """Record: threads, the barrier's counter, then per thread its number of runs, and of arrivals it saw."""

    def meet(thread, address):
        _ = sources
        record = carray(pointer(address), 64, np.int64)
        record[2 + thread] += 1
        for turn in range(ROUNDS):
            barrier(address + 8, turn + 1, record[0])
        record[32 + thread] += arrived(address + 16 * 8, 0) + record[1]

    return numba.cfunc(types.void(types.int64, types.int64), cache=True, nogil=True, error_model="numpy")(meet)


@cache
def meeting() -> int:
    return _meeting(SOURCES).address


def met(threads: int, calls: int = 1) -> bool:
    """Whether each part ran once per call, and waited for all others in every round of every call."""
    record = np.zeros(64, np.int64)
    record[0] = threads
    for _ in range(calls):
        record[1] = 0
        spread(meeting(), threads, record.ctypes.data)
    arrivals = ROUNDS * threads if threads > 1 else 0
    ran = record[2 : 2 + threads].tolist() == [calls] * threads and not record[2 + threads : 16].any()
    return ran and record[32 : 32 + threads].tolist() == [calls * arrivals] * threads


@pytest.mark.parametrize("threads", THREADS)
def test_every_part_runs_once_beside_all_others(threads: int) -> None:
    assert met(threads)


@pytest.mark.parametrize("threads", THREADS)
def test_the_pool_survives_many_calls(threads: int) -> None:
    assert met(threads, calls=2000)


def test_the_number_of_threads_may_change() -> None:
    assert all(met(threads) for threads in (1, *THREADS, 1, *THREADS) * 20)


def test_workers_wake_from_sleep() -> None:
    """Workers spin for less than a few milliseconds; a later call finds them asleep."""
    pause = ctypes.CDLL(None).usleep
    for _ in range(5):
        pause(20_000)
        assert met(THREADS[-1])


def _lateness(sources: str) -> Any:
    """Record: which thread sleeps, for how many microseconds."""
    pause = types.ExternalFunction("usleep", types.int32(types.uint32))

    def late(thread, address):
        _ = sources
        record = carray(pointer(address), 2, np.int64)
        if record[0] == thread:
            pause(np.uint32(record[1]))

    return numba.cfunc(types.void(types.int64, types.int64), cache=True, nogil=True, error_model="numpy")(late)


@pytest.mark.skipif(THREADS[-1] == 1, reason="one core")
@pytest.mark.parametrize("thread", range(THREADS[-1]))
def test_the_lateness_of_any_thread_is_reported_to_contention(thread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, float, float]] = []
    monkeypatch.setattr(native_threads.CONTENTION, "observe", lambda *step: told.append(step))
    record = np.array([thread, 30_000], np.int64)
    spread(_lateness(SOURCES).address, THREADS[-1], record.ctypes.data)
    ((threads, took, lost),) = told
    assert threads == THREADS[-1]
    assert took >= 0.03
    assert 0.029 <= lost <= took


def test_two_callers_take_turns() -> None:
    with ThreadPoolExecutor(2) as callers:
        assert all(callers.map(lambda threads: met(threads, calls=50), [THREADS[-1]] * 8))


def test_two_callers_that_come_first_share_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers keep only the address of their pool: with a pool that was created and dropped they would read freed memory."""
    made = []

    class Slow:
        def __init__(self, threads: int) -> None:
            sleep(0.05)
            made.append(threads)
            self.threads = threads

    monkeypatch.setattr(native_threads, "_pools", {})
    monkeypatch.setattr(native_threads, "_Pool", Slow)
    with ThreadPoolExecutor(4) as callers:
        pools = list(callers.map(lambda threads: native_threads._pool(1, threads), [2] * 4))
    assert made == [2]
    assert len(set(map(id, pools))) == 1


@pytest.mark.parametrize("started", range(3))
def test_where_no_more_threads_can_be_started_those_that_there_are_do(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    class Rare(Thread):
        def start(self) -> None:
            if len(begun) == started:
                raise RuntimeError("can't start new thread")
            begun.append(self)
            super().start()

    monkeypatch.setattr(native_threads, "_pools", {})
    monkeypatch.setattr(native_threads, "Thread", Rare)
    assert granted(1) == 1
    assert granted(4) == granted(4) == 1 + started
    with pytest.raises(RuntimeError, match=f"no more than {1 + started} of 4 threads can be started"):
        met(4)
    assert met(1 + started, calls=3)
    assert len(begun) == started, "starting threads is not retried"
    assert granted(1 + started) == 1 + started


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_has_a_pool_of_its_own() -> None:
    assert met(THREADS[-1])
    with warnings.catch_warnings():
        # newer Pythons warn of any fork in a process with threads
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        # a missing worker would be waited for forever
        ctypes.CDLL(None).alarm(20)
        os._exit(0 if met(THREADS[-1], calls=20) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert met(THREADS[-1])


def test_threads_are_counted_by_what_may_run() -> None:
    assert 1 <= most_threads() <= (os.cpu_count() or 1)
