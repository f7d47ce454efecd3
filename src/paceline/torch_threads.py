"""Torch's threads, where they are in the way: of compiled kernels that need the cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock, get_ident, local

import torch

from paceline.machine import most_threads

_SHARED = 32_768
"""Numbers that torch computes with on one thread whatever it has."""
_AS_IT_IS = nullcontext()
_inside: dict[int, int] = {}
"""Who computes alone, and how many threads torch has there otherwise."""
_lock = Lock()


class _Thread(local):
    asked = False


_this = _Thread()


def _renew() -> None:
    """A forked process has not the thread that may have held the lock."""
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def usable() -> int:
    """How many torch is set to use, but no more than run at once."""
    with _lock:
        threads = _own()
    return min(threads, most_threads())


def quiet(numbers: int) -> AbstractContextManager[None]:
    """`alone` for whoever computes with so many numbers at once, a row of logits say, if torch would share that out."""
    return alone() if numbers > _SHARED else _AS_IT_IS


@contextmanager
def alone() -> Iterator[None]:
    """Inside, torch computes on the calling thread alone.

    For some milliseconds after an operation that was shared out, the threads that took part spin, and kernels that come next miss
    the cores.
    """
    threads = 1
    try:
        with _lock:
            threads = _own()
            if threads > 1:
                _inside[get_ident()] = threads
                torch.set_num_threads(1)
        yield
    finally:
        # with one thread anyway, or within another block of this thread, nothing was changed
        if threads > 1:
            with _lock:
                torch.set_num_threads(threads)
                _inside.pop(get_ident(), None)


def _own() -> int:
    """How many threads torch has on this one.

    A thread takes over the process's number when it first has to do with torch, and keeps it: while another computes alone that
    is one, which nobody asked for.
    """
    threads = torch.get_num_threads()
    if not _this.asked:
        _this.asked = True
        if threads == 1 and _inside:
            threads = max(_inside.values())
            torch.set_num_threads(threads)
    return threads
