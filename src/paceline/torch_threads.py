"""Torch's threads: keeps them from occupying cores that compiled kernels need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock, get_ident, local

import torch

from paceline.machine import most_threads

_SHARED = 32_768
"""Up to so many numbers torch computes on one thread, however many threads it has."""
_AS_IT_IS = nullcontext()
_inside: dict[int, int] = {}
"""Threads that are inside `alone` -> how many threads torch has there otherwise."""
_lock = Lock()


class _Thread(local):
    asked = False


_this = _Thread()


def _renew() -> None:
    """A forked process lacks the thread that may have held the lock, so it gets a new lock."""
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def usable() -> int:
    """How many threads torch is set to use, at most as many as can run at once."""
    with _lock:
        threads = _own()
    return min(threads, most_threads())


def quiet(numbers: int) -> AbstractContextManager[None]:
    """`alone` for a computation on so many numbers at once, e.g. a row of logits, if torch would split it among threads."""
    return alone() if numbers > _SHARED else _AS_IT_IS


@contextmanager
def alone() -> Iterator[None]:
    """Inside, torch computes on the calling thread alone.

    For some milliseconds after an operation on several threads, these threads spin, and the kernels that come next lack their
    cores.
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
    """How many threads torch has on the calling thread.

    A thread takes over the process's number when it first uses torch, and keeps it: while another thread is inside `alone`, that
    number is one, and is corrected here.
    """
    threads = torch.get_num_threads()
    if not _this.asked:
        _this.asked = True
        if threads == 1 and _inside:
            threads = max(_inside.values())
            torch.set_num_threads(threads)
    return threads
