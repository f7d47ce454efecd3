"""Quiet: transformers' logs, warnings and progress bars stay off the user's screen while a checkpoint is read and checked."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock


class _Silence:
    """All of these settings are process-wide: the first thread that enters changes them, the last that leaves restores them."""

    def __init__(self) -> None:
        self._lock, self._count, self._settings = Lock(), 0, ExitStack()

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._settings.enter_context(_silenced())
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._settings.close()


_SILENCE = _Silence()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence inside the block, in all threads; the application's settings are restored afterwards."""
    _SILENCE.begin()
    try:
        yield
    finally:
        _SILENCE.end()


@contextmanager
def _silenced() -> Iterator[None]:
    # slow to import, and not needed if the native backend reads everything itself
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def sentence(error: BaseException) -> str:
    """The first line of an error's message without its full stop, for use inside a sentence of ours.

    After a line that ends with a colon, the next line is appended.
    """
    said = ""
    for line in filter(None, map(str.strip, _message(error).splitlines())):
        said = f"{said} {line}".lstrip()
        if not line.endswith(":"):
            break
    return said.rstrip(".,;:") or type(error).__name__


def _message(error: BaseException) -> str:
    """An error's message. str() of a KeyError is the repr of its argument, which may be a key or a message."""
    if not isinstance(error, KeyError) or len(error.args) != 1:
        return str(error)
    said = str(error.args[0])
    return said if " " in said else f"there is no {error}"
