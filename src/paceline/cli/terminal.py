"""Where commands write, and how they refuse."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from paceline.version import __version__

# names are names, whatever they look like to what prints them
out, err = Console(markup=False), Console(stderr=True, markup=False)


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
    """Refuse to do what is of no use to anybody where standard output is closed."""
    if sys.stdout is None:
        fail("the output cannot be written: standard output is closed")


def tell_json(value: Any) -> None:
    """One line on stdout, in characters that it has."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(json.dumps(value, ensure_ascii=not encoding.lower().startswith("utf")))


def fail(message: str) -> NoReturn:
    """One sentence on stderr and exit code 2."""
    say(message)
    raise typer.Exit(2)


def say(message: str) -> None:
    """One sentence on stderr, if there is anybody to read it. What is quoted in it may hold line breaks and other signs that a
    terminal would follow: they are written as in Python."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    # closed, or a disk or a pipe that takes no more: the exit code says that something is wrong
    with suppress(OSError, AttributeError):
        sys.stderr.write(f"paceline: {shown}\n")
        sys.stderr.flush()
