"""Where commands write, and how they refuse."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from paceline.version import __version__

out, err = Console(), Console(stderr=True)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"paceline {__version__}")
        raise typer.Exit


def tell(
    _version: Annotated[
        bool, typer.Option("--version", help="Say which version this is, and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Show what takes its time without being asked for, such as compiling kernels, on stderr."""
    log = logging.getLogger("paceline")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def fail(message: str) -> NoReturn:
    """One sentence on stderr and exit code 2."""
    sys.stderr.write(f"paceline: {message}\n")
    raise typer.Exit(2)
