"""Checks on a request body before it is parsed: it is UTF-8, not nested too deeply for a parser's stack, and has few enough
objects that parsing it does not block the event loop for long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_QUOTE, _BRACE, _BACKSLASH, _U, _D = b'"{\\ud'
_MOST_OBJECTS = 1 << 14
"""In one body. Parsing and validating one object takes about ten microseconds on the event loop, which all requests share."""


def flaw(body: bytes, depth: int) -> str | None:
    """Why a body is refused before parsing, in one sentence; None if it may be parsed.

    depth: arrays and objects that may be open at once. Time and memory of this check are a small multiple of the body's size,
    whatever it contains.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8: byte {error.start} is not part of a character"
    if b"\0" in body:
        # a NUL suggests UTF-16 or UTF-32, which Python's parser would accept; the checks below count bytes of UTF-8
        return "the body is not JSON in UTF-8: it holds a NUL byte"
    # every backslash that is left begins an escape; offsets are unchanged
    plain = body.replace(rb"\\", b"..")
    if rb"\u" in plain and _halves(np.frombuffer(plain, np.uint8)):
        return "the body is not Unicode: it holds half of a surrogate pair"
    if body.count(b"[") + body.count(b"{") > depth:
        deepest, objects = _nesting(plain)
        if deepest > depth:
            return f"the body is nested deeper than {depth} levels"
        if objects > _MOST_OBJECTS:
            return f"the body holds more than {_MOST_OBJECTS} objects"
    return None


def _halves(data: NDArray[np.uint8]) -> bool:
    """Whether an escape is an unpaired surrogate: a high one with no low one after it, or a low one with no high one before."""
    at = np.flatnonzero((data[:-3] == _BACKSLASH) & (data[1:-2] == _U) & (data[2:-1] | 32 == _D))
    digit = data[at + 3] | 32
    high, low = np.isin(digit, list(b"89ab")), np.isin(digit, list(b"cdef"))
    return not np.array_equal(at[high] + 6, at[low])


def _nesting(plain: bytes) -> tuple[int, int]:
    """How deep brackets outside strings nest, and how many objects they open."""
    data = np.frombuffer(plain.replace(rb"\"", b""), np.uint8)
    outside = np.cumsum(data == _QUOTE, dtype=np.int32) % 2 == 0
    opened = np.isin(data, list(b"[{")) & outside
    change = opened.astype(np.int8) - (np.isin(data, list(b"]}")) & outside)
    return int(np.cumsum(change, dtype=np.int32).max(initial=0)), int(np.count_nonzero(opened & (data == _BRACE)))
