"""Pool: the compiled code of the threads of the pool in `threads`: wait for work, do a part of it, and wait again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from paceline.kernels.native.layout import POOL, TIMES
from paceline.kernels.native.memory import arrived, awaited, carray, helper, idled, pointer, run_part, seen

_lock, _unlock = (types.ExternalFunction(f"pthread_mutex_{verb}", types.int32(types.int64)) for verb in ("lock", "unlock"))
_wait = types.ExternalFunction("pthread_cond_wait", types.int32(types.int64, types.int64))
_wake = types.ExternalFunction("pthread_cond_broadcast", types.int32(types.int64))
_read = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_OFFSETS: Any = POOL.fields
_TURN, _FINISHED = int(_OFFSETS["turn"][1]), int(_OFFSETS["finished"][1])
_SECOND = 1_000_000_000


@helper
def _now(clock, room):
    """Nanoseconds of one of the system's clocks. room: address of int64 [2]."""
    _read(np.int32(clock), room)
    time = carray(pointer(room), 2, np.int64)
    return time[0] * _SECOND + time[1]


@helper
def _run(pool, thread):
    """Run this thread's part, and record its CPU time."""
    place = pool.times + 8 * TIMES * thread
    before = _now(pool.own_clock, place + 8)
    run_part(pool.part, thread, pool.record)
    carray(pointer(place), 1, np.int64)[0] = _now(pool.own_clock, place + 8) - before


def idle(turns, address):
    idled(address, 0, turns)


def work(thread, address):
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
        _run(pool[0], thread)
        arrived(address + _FINISHED, 1)


def lead(thread, address):
    pool = carray(pointer(address), 1, POOL)
    times = carray(pointer(pool[0].times), TIMES * pool[0].threads, np.int64)
    room = pool[0].times + 8
    began = _now(pool[0].wall_clock, room)
    pool[0].finished = 0
    _lock(pool[0].mutex)
    arrived(address + _TURN, 1)
    _wake(pool[0].condition)
    _unlock(pool[0].mutex)
    _run(pool[0], thread)
    awaited(address + _FINISHED, pool[0].threads - 1, pool[0].patience)
    pool[0].took = _now(pool[0].wall_clock, room) - began
    least = times[0]
    for other in range(1, pool[0].threads):
        least = min(least, times[TIMES * other])
    pool[0].lost = pool[0].took - least
