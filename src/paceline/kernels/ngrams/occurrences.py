"""Occurrences: where every n-gram of one growing text ended last, where the same n-gram had ended before each such end, and what
most of its ends are followed by.

It grows token by token, so a step costs what it adds; it remembers the tokens it was grown from, so it can be cut back too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.kernels.lookups import Call, Lookup

BEFORE, AGREED, LEADS = 0, 1, 2
"""What is held of an end: its predecessor, 0 for none; of the ends of its n-gram up to there, the last that is followed by what
most are followed by; by how many ends that majority leads."""
_AT_ONCE = 1024
"""Tokens that are taken in before tables are looked at again: they grow with the n-grams there are, not with the text."""

_TABLES = {"lengths": "int64[:]", "tables": "int32[:,:]"}
INDEX = {"text": "int32[:]", **_TABLES, "ends": "int32[:,:,:]", "counts": "int64[:]"}
"""Arrays of `Occurrences`, which hand them to whatever is compiled."""
_GROWN = Lookup("ngrams.index.grown", **INDEX, known="int64", size="int64")
_CUT = Lookup("ngrams.index.cut", **INDEX, known="int64", kept="int64")
_FILLED = Lookup("ngrams.index.filled", text="int32[:]", **_TABLES, known="int64")
KERNELS = (_GROWN, _CUT, _FILLED)


class Occurrences:
    """shortest, longest: of the n-grams that are indexed, in tokens; `lengths` are those that are.

    text: int32, the tokens, `size` of them. An n-gram is indexed once something follows it. tables: int32 [lengths, slots], the
    last ends. ends: int32 [lengths, 3, room], what is held of every end, at 0 of none. counts: int64 [lengths], table entries.
    calls: of those who look something up here, until an array is replaced.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.lengths = np.array(indexed(shortest, longest), np.int64)
        self.size = 0
        self.text = np.zeros(256, np.int32)
        self.tables = np.zeros((len(self.lengths), 512), np.int32)
        self.ends = np.zeros((len(self.lengths), 3, 256), np.int32)
        self.counts = np.zeros(len(self.lengths), np.int64)
        self.calls: dict[Any, Call] = {}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in INDEX}

    def grow(self, tokens: list[int]) -> None:
        """Take in what is new of a text that began as this one."""
        if self.size < len(tokens):
            known = self.written(tokens)
            self._grow(known, len(tokens))

    def written(self, tokens: list[int]) -> int:
        """Take in all that is new but for a last piece, which is only written down; how many tokens are known, behind which
        whoever asks has `grown` take in that piece, and sets the size."""
        while True:
            known = max(self.size - 1, 0)
            size = min(len(tokens), known + _AT_ONCE)
            self._reserve(size)
            self.text[known:size] = tokens[known:size]
            if size == len(tokens):
                return known
            self._grow(known, size)

    def _grow(self, known: int, size: int) -> None:
        call = self.calls.get(_GROWN)
        if call is None:
            call = self.calls[_GROWN] = _GROWN.call(**self.arrays)
        call.record.known, call.record.size = known, size
        call()
        self.size = size

    def _reserve(self, size: int) -> None:
        """Make room for so many tokens."""
        if size > len(self.text):
            room = max(size, 2 * len(self.text))
            # calls hold addresses; and the text, whose length is asked above, comes last: whoever is interrupted begins anew
            self.calls.clear()
            self.ends = _longer(self.ends, max(room, self.ends.shape[-1]))
            self.text = _longer(self.text, room)
        if 2 * size <= self.tables.shape[1]:
            # there are no more n-grams than tokens
            return
        most = max(self.counts.tolist()) + size - max(self.size - 1, 0)
        if 2 * most > self.tables.shape[1]:
            self.calls.clear()
            tables = np.zeros((len(self.lengths), 1 << (2 * most - 1).bit_length()), np.int32)
            _FILLED(self.text, self.lengths, tables, max(self.size - 1, 0))
            self.tables = tables

    def truncate(self, size: int) -> None:
        """Keep what `size` tokens have told, the last of them being followed by nothing yet."""
        if size < self.size:
            known, kept = max(self.size - 1, 0), max(size - 1, 0)
            _CUT(*self.arrays.values(), known, kept)
            self.size = size

    def copy(self) -> Occurrences:
        other = Occurrences(int(self.lengths[0]), int(self.lengths[-1]))
        room = max(self.size, len(other.text))
        other.size, other.text, other.tables = self.size, self.text[:room].copy(), self.tables.copy()
        other.ends, other.counts = self.ends[..., :room].copy(), self.counts.copy()
        return other

    @property
    def held_bytes(self) -> int:
        return self.text.nbytes + self.tables.nbytes + self.ends.nbytes


def _longer(rows: Any, room: int) -> Any:
    longer = np.zeros((*rows.shape[:-1], room), rows.dtype)
    longer[..., : rows.shape[-1]] = rows
    return longer


_EVERY = 3
"""Up to here n-grams of every length are indexed."""


def indexed(shortest: int, longest: int) -> tuple[int, ...]:
    """The lengths that are indexed between two: up to 3 each, behind that twice the one before, and the longest. How far a match
    reaches is read off the text, so lengths need lie no closer than they must to tell a long match from many short ones."""
    found = [shortest]
    while found[-1] < longest:
        found.append(min(found[-1] + 1 if found[-1] < _EVERY else 2 * found[-1], longest))
    return tuple(found)
