"""Where commands write, and how they refuse."""

from __future__ import annotations

import logging
import sys
from typing import NoReturn

import typer
from rich.console import Console

out, err = Console(), Console(stderr=True)


def tell() -> None:
    """Show what takes its time without being asked for, such as compiling kernels, on stderr."""
    log = logging.getLogger("paceline")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def fail(message: str) -> NoReturn:
    """One sentence on stderr and exit code 2."""
    sys.stderr.write(f"paceline: {message}\n")
    raise typer.Exit(2)
