"""Compiled: what Numba keeps on disk, and when it is stale.

Numba caches a function under its own file's date, its types, the processor and the values it closes over. A kernel also depends
on the files it is put together from and on those whose constants it compiles in, so every kernel closes over `SOURCES`, which
changes when any of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from pickle import UnpicklingError
from threading import Timer
from typing import Any

from paceline import noise, stopping
from paceline.kernels.native.vectors import MATRIX_UNIT

_FILES = [
    file.read_bytes() for file in [*sorted(Path(__file__).parent.glob("*.py")), Path(noise.__file__), Path(stopping.__file__)]
]
SOURCES = sha256(b"".join([*_FILES, bytes([MATRIX_UNIT])])).hexdigest()[:16]
"""A digest of these files, and of what the system decides about and not the processor."""

_UNREADABLE = (OSError, RuntimeError, EOFError, UnpicklingError)


def kept(compile_: Callable[[bool], Any]) -> Any:
    """What `compile_` makes, kept on disk or read from there; not so where Numba cannot, as from a file that was cut off.

    compile_: is told whether to keep it.
    """
    try:
        return compile_(True)
    except _UNREADABLE as error:
        why = str(error) or type(error).__name__
        getLogger("paceline").warning("kernels are compiled anew: they cannot be kept on disk, or not be read there: %s", why)
        return compile_(False)


_PATIENCE_S = 1.5
"""Reading kernels from disk takes less."""


@contextmanager
def announced() -> Iterator[None]:
    """Say so where kernels are compiled and not read from disk: then nothing is seen to happen for some seconds."""
    message = "compiling kernels for this processor; later starts find them on disk"
    timer = Timer(_PATIENCE_S, getLogger("paceline").info, [message])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
