"""Texts that commands read from files and standard input, bounded, since a device may have no end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from paceline.cli.terminal import fail


def text_of_file(file: Path, largest_bytes: int, what: str) -> str:
    """The text of a file, which must be UTF-8, without the line break at its end. what: for the message of a file that is too
    large, such as "a prompt"."""
    try:
        with file.open("rb") as stream:
            return _text(stream, f"'{file}'", largest_bytes, what)
    except OSError as error:
        fail(f"cannot read '{file}': {error.strerror}")


def text_of_stdin(largest_bytes: int, what: str) -> str:
    """The same of standard input."""
    # the parent process may have closed it
    if sys.stdin is None:
        fail(f"cannot read {what}: standard input is closed")
    try:
        return _text(sys.stdin.buffer, "standard input", largest_bytes, what)
    except OSError as error:
        fail(f"cannot read standard input: {error.strerror}")


def _text(stream: BinaryIO, name: str, largest_bytes: int, what: str) -> str:
    read = stream.read(largest_bytes + 1)
    if len(read) > largest_bytes:
        fail(f"{name} is larger than the {largest_bytes >> 20} MiB that {what} may have")
    try:
        text = read.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fail(f"{name} is not UTF-8 text: see byte {error.start}")
    # which editors and `echo` add
    text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        fail(f"{name} holds no text")
    return text
