"""Interrupts: Ctrl-C while modules are imported and a model loads ends the command line at once.

Raised as an exception there, it is lost in imports that go on without what they could not import, or becomes another error.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import Any

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


def _end(*_: Any) -> None:
    if os.isatty(2):
        # a spinner has hidden the cursor
        os.write(2, b"\r\x1b[2K\x1b[?25h")
    os._exit(INTERRUPTED)
