"""Interrupts: Ctrl-C while modules are imported and a model loads ends the command line at once; in a step of the engine it waits
until that is over, unless it comes again.

As an exception during an import, it is lost where the importing code catches errors and goes on without the module, or it becomes
another error. Raised in a step, it makes the engine do the step of other threads' requests again.
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
"""For `_signal`: the wrappers of its functions in `signal` look up names, which would take 25 us in every step."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a program that Ctrl-C ended, by the convention of shells."""


def end_at_once() -> None:
    """Let Ctrl-C end the process at once, until `raise_again`, unless interrupts are ignored or handled: nothing can be lost."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # other threads than the main one may not set handlers, and are never interrupted
        with suppress(ValueError):
            signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Handle interrupts as Python does, so that what is begun from here on is cleaned up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def raised() -> Iterator[None]:
    """A context with `raise_again` in effect, for code that must clean up, such as ending processes."""
    ended = signal.getsignal(signal.SIGINT) is _end and current_thread() is main_thread()
    if ended:
        raise_again()
    try:
        yield
    finally:
        if ended:
            end_at_once()


class Deferred:
    """A context in which an interrupt of the main thread waits. At its end it is handled as if it came then, or at once, if a
    second one comes: what runs may never end."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._came: tuple[Any, ...] | None = None

    def __enter__(self) -> None:
        if current_thread() is not main_thread() or not callable(handler := _signal.getsignal(_SIGINT)):
            return
        # not allowed in the main thread of a subinterpreter
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
        came, self._came = self._came, arguments
        if came is not None:
            self._came = None
            self._handler(*came)
            self._handler(*arguments)


def _end(*_: Any) -> None:
    if os.isatty(2):
        # a spinner has hidden the cursor
        os.write(2, b"\r\x1b[2K\x1b[?25h")
    os._exit(INTERRUPTED)
