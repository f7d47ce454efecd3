"""NgramIndex: for every n-gram of a growing text, its latest occurrence, the chain of earlier ones, and the majority of next
tokens.

It is extended token by token, so a step costs only as much as it adds, and it can be truncated, since it keeps the tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.kernels.compiled_call import Call, CompiledFunction

BEFORE, AGREED, LEADS = 0, 1, 2
"""Rows of `ends`, per end of an occurrence: the end of the previous occurrence, 0 for none; the latest end, of all occurrences up
to this one, that is followed by the majority token; by how many occurrences that majority leads."""
_AT_ONCE = 1024
"""Most tokens indexed before the size of the tables is checked again: they grow with distinct n-grams, not with the text."""

_TABLES = {"lengths": "int64[:]", "tables": "int32[:,:]"}
INDEX = {"text": "int32[:]", **_TABLES, "ends": "int32[:,:,:]", "counts": "int64[:]"}
"""Arrays of `NgramIndex`, the first arguments of its compiled functions."""
_EXTEND = CompiledFunction("ngrams.index_kernel.extend", **INDEX, known="int64", size="int64")
_TRUNCATE = CompiledFunction("ngrams.index_kernel.truncate", **INDEX, known="int64", kept="int64")
_REHASH = CompiledFunction("ngrams.index_kernel.rehash", text="int32[:]", **_TABLES, known="int64")
KERNELS = (_EXTEND, _TRUNCATE, _REHASH)


class NgramIndex:
    """An index over the n-grams of one text that have a next token.

    shortest, longest: bounds of n; `lengths`, int64, are the values of n that are indexed. text: int32 [room], of which `size`
    tokens are valid. tables: int32 [lengths, slots], hash tables of latest ends. ends: int32 [lengths, 3, room], per end what
    BEFORE, AGREED and LEADS name; column 0 stands for no end. counts: int64 [lengths], entries per table. calls: prepared calls
    with these arrays, dropped when one is replaced.
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
        """The arrays that `INDEX` names."""
        return {name: getattr(self, name) for name in INDEX}

    def grow(self, tokens: list[int]) -> None:
        """Index the new tokens of a text that begins with the indexed one."""
        if self.size < len(tokens):
            known = self.written(tokens)
            self._grow(known, len(tokens))

    def written(self, tokens: list[int]) -> int:
        """Copy the new tokens of a text, and index all but a last piece of up to `_AT_ONCE` tokens.

        Returns `known`; the caller has to index the tokens after it with `index_kernel.extend`, and then set `size`.
        """
        while True:
            known = max(self.size - 1, 0)
            size = min(len(tokens), known + _AT_ONCE)
            self._reserve(size)
            self.text[known:size] = tokens[known:size]
            if size == len(tokens):
                return known
            self._grow(known, size)

    def _grow(self, known: int, size: int) -> None:
        call = self.calls.get(_EXTEND)
        if call is None:
            call = self.calls[_EXTEND] = _EXTEND.call(**self.arrays)
        call.record.known, call.record.size = known, size
        call()
        self.size = size

    def _reserve(self, size: int) -> None:
        """Make room for so many tokens."""
        if size > len(self.text):
            room = max(size, 2 * len(self.text))
            # prepared calls hold addresses; the text, whose length is checked above, is replaced last: after an interrupt, the
            # next call starts over
            self.calls.clear()
            self.ends = _longer(self.ends, max(room, self.ends.shape[-1]))
            self.text = _longer(self.text, room)
        if 2 * size <= self.tables.shape[1]:
            # there are never more n-grams than tokens
            return
        most = max(self.counts.tolist()) + size - max(self.size - 1, 0)
        if 2 * most > self.tables.shape[1]:
            self.calls.clear()
            tables = np.zeros((len(self.lengths), 1 << (2 * most - 1).bit_length()), np.int32)
            _REHASH(self.text, self.lengths, tables, max(self.size - 1, 0))
            self.tables = tables

    def truncate(self, size: int) -> None:
        """Forget all tokens after the first `size`, and the n-grams that only they complete or follow."""
        if size < self.size:
            known, kept = max(self.size - 1, 0), max(size - 1, 0)
            _TRUNCATE(*self.arrays.values(), known, kept)
            self.size = size

    def copy(self) -> NgramIndex:
        """An independent copy, without prepared calls."""
        other = NgramIndex(int(self.lengths[0]), int(self.lengths[-1]))
        room = max(self.size, len(other.text))
        other.size, other.text, other.tables = self.size, self.text[:room].copy(), self.tables.copy()
        other.ends, other.counts = self.ends[..., :room].copy(), self.counts.copy()
        return other

    @property
    def held_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return self.text.nbytes + self.tables.nbytes + self.ends.nbytes


def _longer(rows: Any, room: int) -> Any:
    """A copy whose last axis has length `room`, filled up with zeros."""
    longer = np.zeros((*rows.shape[:-1], room), rows.dtype)
    longer[..., : rows.shape[-1]] = rows
    return longer


_EVERY = 3
"""Every n up to this is indexed."""


def indexed(shortest: int, longest: int) -> tuple[int, ...]:
    """The values of n that are indexed from `shortest` to `longest`: each up to 3, then doubling, and the longest.

    The exact length of a match is read off the text, so these only have to tell a long match from many short ones.
    """
    found = [shortest]
    while found[-1] < longest:
        found.append(min(found[-1] + 1 if found[-1] < _EVERY else 2 * found[-1], longest))
    return tuple(found)
