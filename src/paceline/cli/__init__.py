"""The command line. Every error a user can cause is one sentence on stderr and exit code 2.

A new command is a function in a file of its own, named after it, and a line in `app.py`. `options.py` holds the options that
commands share, `terminal.py` what they write to. What needs torch is imported inside the function that uses it, so that help and
wrong usage answer at once. Until a command calls `raise_again`, having nothing to clear up, Ctrl-C ends it at once.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from io import TextIOWrapper

from paceline.cli.app import app
from paceline.cli.terminal import say
from paceline.errors import PacelineError
from paceline.interrupts import INTERRUPTED, end_at_once, raise_again

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What a write fails with where the output is a file or a device that takes no more."""
_PIPE_CLOSED = 128 + 13
"""As a shell tells of a program that a closed pipe ended."""


def main() -> None:
    """Entry point: turns every error a user can cause into one sentence and exit code 2."""
    end_at_once()
    _write_what_there_is()
    try:
        try:
            app(standalone_mode=True)
        except SystemExit as ended:
            # typer's 1 for a reader who has left is what some commands say of what they found
            if isinstance(ended.__context__, BrokenPipeError):
                raise SystemExit(_PIPE_CLOSED) from None
            raise
        finally:
            _flush()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        # files that are read or written by their name have sentences of their own, which name them
        if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
            _give_up_output()
            say(f"the output cannot be written: {error.strerror}")
            raise SystemExit(2) from None
        if not isinstance(error, PacelineError):
            raise
        say(str(error))
        raise SystemExit(2) from None
    finally:
        raise_again()


def _write_what_there_is() -> None:
    """Have characters that a stream's encoding lacks written by their number, and not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Write what is left: at the interpreter's end it would fail without a word from us."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read has seen enough
        _give_up_output()


def _give_up_output() -> None:
    """Send what is still to be written nowhere, so that the interpreter's own flush at the end does not fail again."""
    # a stream of somebody else's making, which has no file
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
