"""Interrupts: Ctrl-C while modules are imported and a model loads ends the command line at once; in a step of the engine it waits
until that is over.

Raised as an exception while something is imported, it is lost in imports that go on without what they could not import, or
becomes another error. Raised in a step, it would leave other threads' requests with half of what that brought, or locks held.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import Any

_SIGINT = int(signal.SIGINT)
"""What `_signal` takes: the functions that `signal` makes of its own look names up for 25 us, which every step would wait."""
INTERRUPTED = 128 + signal.SIGINT
"""As a shell tells of a program that Ctrl-C ended."""


def end_at_once() -> None:
    """Until `raise_again`, unless somebody ignores interrupts or handles them: nothing is written yet that would be lost."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # another thread than the main one may not, and is never interrupted
        with suppress(ValueError):
            signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Handle interrupts as Python does: what was begun from here on is cleared up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def raised() -> Iterator[None]:
    """The same for as long as there is something to clear up, such as processes."""
    ended = signal.getsignal(signal.SIGINT) is _end and current_thread() is main_thread()
    if ended:
        raise_again()
    try:
        yield
    finally:
        if ended:
            end_at_once()


class Deferred:
    """A context in which interrupts of the main thread wait. At its end they are handled as if they came then."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._came: tuple[Any, ...] | None = None

    def __enter__(self) -> None:
        if current_thread() is not main_thread() or not callable(handler := _signal.getsignal(_SIGINT)):
            return
        # in the main thread of another interpreter nobody may
        with suppress(ValueError):
            _signal.signal(_SIGINT, self._note)
            self._handler = handler

    def __exit__(self, *_: object) -> None:
        if self._handler is None:
            return
        _signal.signal(_SIGINT, self._handler)
        if self._came is not None:
            self._handler(*self._came)

    def _note(self, *arguments: Any) -> None:
        self._came = arguments


def _end(*_: Any) -> None:
    if os.isatty(2):
        # a spinner has hidden the cursor
        os.write(2, b"\r\x1b[2K\x1b[?25h")
    os._exit(INTERRUPTED)
