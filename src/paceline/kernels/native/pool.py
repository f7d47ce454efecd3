"""Pool: what a thread of the pool of `threads` does: wait for work, do its part, and wait again."""

from __future__ import annotations

from typing import Any

from paceline.kernels.native.layout import POOL
from paceline.kernels.native.memory import arrived, awaited, carray, idled, pointer, run_part, seen

from numba import types  # isort: skip  (after `vectors`)

_lock, _unlock = (types.ExternalFunction(f"pthread_mutex_{verb}", types.int32(types.int64)) for verb in ("lock", "unlock"))
_wait = types.ExternalFunction("pthread_cond_wait", types.int32(types.int64, types.int64))
_wake = types.ExternalFunction("pthread_cond_broadcast", types.int32(types.int64))
_OFFSETS: Any = POOL.fields
_TURN, _FINISHED = int(_OFFSETS["turn"][1]), int(_OFFSETS["finished"][1])


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
        run_part(pool[0].part, thread, pool[0].record)
        arrived(address + _FINISHED, 1)


def lead(thread, address):
    pool = carray(pointer(address), 1, POOL)
    pool[0].finished = 0
    _lock(pool[0].mutex)
    arrived(address + _TURN, 1)
    _wake(pool[0].condition)
    _unlock(pool[0].mutex)
    run_part(pool[0].part, thread, pool[0].record)
    awaited(address + _FINISHED, pool[0].threads - 1, pool[0].patience)
