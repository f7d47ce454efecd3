"""Output of commands, and their error messages."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from paceline.version import __version__

# rich must interpret neither brackets nor words between colons in names
out, err = Console(markup=False, emoji=False), Console(stderr=True, markup=False, emoji=False)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"paceline {__version__}")
        raise typer.Exit


def tell(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Show what takes its time without being asked for, such as compiling kernels, on stderr."""
    log = logging.getLogger("paceline")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def need_output() -> None:
    """Fail if standard output is closed, for commands that are useless without it."""
    if sys.stdout is None:
        fail("the output cannot be written: standard output is closed")


def tell_json(value: Any) -> None:
    """Print one line of JSON on stdout; ASCII unless its encoding is a UTF."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(json.dumps(value, ensure_ascii=not encoding.lower().startswith("utf")))


def fail(message: str) -> NoReturn:
    """Print one sentence on stderr and exit with code 2."""
    say(message)
    raise typer.Exit(2)


def say(message: str) -> None:
    """Print one sentence on stderr, if it is open. Control characters in quoted text, which a terminal would interpret, are
    written as Python escapes."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    # stderr may be closed or full; the exit code still shows the error
    with suppress(OSError, AttributeError):
        sys.stderr.write(f"paceline: {shown}\n")
        sys.stderr.flush()
