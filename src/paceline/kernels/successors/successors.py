"""Successors: of every row of logits the few largest, noted behind the token whose row it is."""

from __future__ import annotations

import numpy as np

from paceline.kernels.lookups import Lookup

NOTHING = -1
"""In place of a token: nothing is known there yet."""
_LARGEST = Lookup(
    "successors.largest.largest",
    logits="float32[:,:]",
    bits="int32[:,:]",
    values="float32[:,:]",
    places="int64[:,:]",
    keys="int32[:]",
)
_NOTE = Lookup(
    "successors.largest.note",
    values="float32[:,:]",
    places="int64[:,:]",
    rows="int64[:]",
    tokens="int32[:,:]",
    shares="float32[:,:]",
    weights="float64[:]",
)
KERNELS = (_LARGEST, _NOTE)


class Successors:
    """tokens: int32 [R, k], what follows each of R tokens, the likeliest first. shares: float32 [R, k], of the likelihood of all
    k that each of them had. rows: R at first. count: k."""

    def __init__(self, rows: int, count: int) -> None:
        self.tokens = np.full((rows, count), NOTHING, np.int32)
        self.shares = np.zeros((rows, count), np.float32)
        self._largest = _LARGEST.call(keys=np.empty(count, np.int32))
        self._note = _NOTE.call(tokens=self.tokens, shares=self.shares, weights=np.empty(count))

    def grow(self, rows: int) -> None:
        """Have room for so many rows."""
        lacking = rows - len(self.tokens)
        if lacking > 0:
            more = ((0, max(lacking, len(self.tokens))), (0, 0))
            self.tokens = np.pad(self.tokens, more, constant_values=NOTHING)
            self.shares = np.pad(self.shares, more)
            self._note.give(tokens=self.tokens, shares=self.shares)

    def largest(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float32 and int64 [n, k]: the largest of every row in falling order, of equal ones the first first, and where they are.

        logits: float32 [n, V], with V at least k.
        """
        logits, shape = np.ascontiguousarray(logits), (len(logits), self.tokens.shape[1])
        values, places = np.empty(shape, np.float32), np.empty(shape, np.int64)
        self._largest.give(logits=logits, bits=logits.view(np.int32), values=values, places=places)
        try:
            self._largest()
        finally:
            # a step's logits may take a hundred megabytes, and there is one of these for each tenant
            self._largest.let_go("logits", "bits")
        return values, places

    def note(self, values: np.ndarray, places: np.ndarray, rows: np.ndarray) -> None:
        """Note what is likeliest in each of `rows`, int64 [n]; of equal rows the later one counts, one with no number among its
        largest never. values, places: as of `largest`."""
        self._note.give(values=values, places=places, rows=rows)
        self._note()
