"""Successors: of every row of logits the few largest, noted behind the token whose row it is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many

import numpy as np
import torch

from paceline.kernels.compiled import Kernel

NOTHING = -1
"""In place of a token: nothing is known there yet."""
NOTED = Kernel("successors.largest.noted", words=9)


class Successors:
    """tokens: int32 [R, k], what follows each of R tokens, the likeliest first. shares: float32 [R, k], of the likelihood of all
    k that each of them had. rows: R at first. count: k."""

    def __init__(self, rows: int, count: int) -> None:
        self._count, self._scratch = count, np.empty((3, count), np.int64)
        self._hold(np.full((rows, count), NOTHING, np.int32), np.zeros((rows, count), np.float32))

    def _hold(self, tokens: np.ndarray, shares: np.ndarray) -> None:
        self.tokens, self.shares = tokens, shares
        # asking an array for its address takes longer than a call
        self._held_at = tokens.ctypes.data, shares.ctypes.data, self._count, self._scratch.ctypes.data

    def grow(self, rows: int) -> None:
        """Have room for so many rows."""
        lacking = rows - len(self.tokens)
        if lacking > 0:
            more = ((0, max(lacking, len(self.tokens))), (0, 0))
            self._hold(np.pad(self.tokens, more, constant_values=NOTHING), np.pad(self.shares, more))

    def note(self, logits: torch.Tensor, rows: Many[int]) -> None:
        """Note the largest of every row of logits, of equal ones the first first, at these rows of the table; of equal rows the
        later one counts, one with no number among its largest never. logits: float32 [n, V], with V at least k."""
        if len(logits) != len(rows):
            raise ValueError(f"{len(rows)} tokens and {len(logits)} rows of logits")
        if logits.device.type != "cpu":
            self._note_from_device(logits, np.array(rows))
            return
        # nothing of its work by torch, whose threads would spin on the cores that the next forward needs
        logits = logits.float() if logits.stride(1) == 1 else logits.float().contiguous()
        places = array("q", rows)
        NOTED.function(
            logits.data_ptr(), 4 * logits.stride(0), logits.shape[1], places.buffer_info()[0], len(places), *self._held_at
        )

    def _note_from_device(self, logits: torch.Tensor, rows: np.ndarray) -> None:
        found, where = logits.float().topk(self._count)
        # to wait for the device once is enough
        both = torch.stack((found.view(torch.int32), where.int())).cpu().numpy()
        values, places = both[0].view(np.float32), both[1]
        sure = np.isfinite(values[:, [0, -1]]).all(1)
        values, places, rows = values[sure].astype(np.float64), places[sure], rows[sure]
        weights = np.exp(values - values[:, :1])
        self.tokens[rows], self.shares[rows] = places, weights / weights.sum(1, keepdims=True)
