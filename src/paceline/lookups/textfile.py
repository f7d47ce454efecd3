"""Text files that methods learn from: read whole, within bounds, and with errors that are one sentence."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from paceline.lookups.documents import cut
from paceline.machine import expanded
from paceline.spec import SpecError

LARGEST_MIB = 16
"""Files are read up to this size: a method that keeps a file in memory is not meant for more."""


def text_of_file(path: str) -> str:
    """The text of a file. Raises SpecError where it is missing, too large, not UTF-8, or empty."""
    try:
        file = expanded(path)
        if not file.is_file():
            raise SpecError(f"there is no file '{path}'")
        if file.stat().st_size > LARGEST_MIB << 20:
            raise SpecError(f"'{path}' is larger than {LARGEST_MIB} MiB: build a datastore from it, or take a part of it")
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"'{path}' is not a text file: it is not valid UTF-8 at byte {error.start}") from error
    # ValueError: a path that no file can have, such as one with a null byte
    except (OSError, ValueError) as error:
        raise SpecError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not text.strip():
        raise SpecError(f"'{path}' holds no text")
    return text


def tokens_of_file(path: str, encode: Callable[[str, bool], list[int]], vocab_size: int) -> array[int]:
    """Token ids of a file's text, without special tokens and without ids that the target does not know. Raises SpecError.

    encode: text, and whether special tokens are added. A large file is tokenised in pieces that end with a line or a word.
    """
    tokens = array("i")
    for piece, _ in cut(text_of_file(path)):
        tokens.extend(encode(piece, False))
    known = np.asarray(tokens)
    return array("i", known[known < vocab_size].tobytes())
