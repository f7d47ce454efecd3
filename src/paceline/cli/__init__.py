"""The command line. Every error a user can cause is one sentence on stderr and exit code 2.

A new command is a function in its own file, named after it, and a line in `app.py`. `options.py` has the options that commands
share, `terminal.py` their consoles and error output. Modules that need torch are imported inside the function that uses them, so
that help and usage errors appear at once. Until a command calls `raise_again` it has nothing to clean up, and Ctrl-C ends it at
once.
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
"""Errors of a write to a file or a device that is full or broken."""
_PIPE_CLOSED = 128 + 13
"""The exit code that shells report for a program ended by SIGPIPE."""


def main() -> None:
    """Entry point: turns every error a user can cause into one sentence and exit code 2."""
    end_at_once()
    _write_what_there_is()
    try:
        try:
            app(standalone_mode=True)
        except SystemExit as ended:
            # for a closed pipe typer exits with 1, which some commands use for their results
            if isinstance(ended.__context__, BrokenPipeError):
                raise SystemExit(_PIPE_CLOSED) from None
            raise
        finally:
            _flush()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        # errors of named files have their own sentences, with the name
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
    """Write characters that a stream's encoding lacks as escapes instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Flush standard output here: an error at the interpreter's exit could not be handled."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has closed the pipe
        _give_up_output()


def _give_up_output() -> None:
    """Redirect remaining output to the null device, so that the interpreter's flush at exit does not fail again."""
    # suppress: sys.stdout may have been replaced by a stream without a file
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
