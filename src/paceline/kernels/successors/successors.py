"""Successors: a table of the likeliest next tokens per token, filled from all logits that are computed anyway."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many

import numpy as np
import torch

from paceline.kernels.compiled import Kernel

NOTHING = -1
"""In place of a token: no logits recorded yet."""
RECORD_TOP_K = Kernel("successors.top_k_kernel.record_top_k", words=9)


class Successors:
    """tokens: int32 [R, k], per row of the table the likeliest next tokens, in falling order. shares: float32 [R, k], their
    probabilities, normalised over these k tokens. rows: R at first. count: k."""

    def __init__(self, rows: int, count: int) -> None:
        self._count, self._scratch = count, np.empty((3, count), np.int64)
        self._hold(np.full((rows, count), NOTHING, np.int32), np.zeros((rows, count), np.float32))

    def _hold(self, tokens: np.ndarray, shares: np.ndarray) -> None:
        self.tokens, self.shares = tokens, shares
        # reading the address of an array takes longer than a call
        self._held_at = tokens.ctypes.data, shares.ctypes.data, self._count, self._scratch.ctypes.data

    def grow(self, rows: int) -> None:
        """Make room for so many rows of the table."""
        lacking = rows - len(self.tokens)
        if lacking > 0:
            more = ((0, max(lacking, len(self.tokens))), (0, 0))
            self._hold(np.pad(self.tokens, more, constant_values=NOTHING), np.pad(self.shares, more))

    def note(self, logits: torch.Tensor, rows: Many[int]) -> None:
        """Record the k largest of every row of logits, in a tie the lowest token first, in these rows of the table.

        If a table row occurs repeatedly, the last logits count; those with NaN or an infinity among their largest are skipped.
        logits: [n, V], with V at least k. rows: n row numbers.
        """
        if len(logits) != len(rows):
            raise ValueError(f"{len(rows)} tokens and {len(logits)} rows of logits")
        if logits.device.type != "cpu":
            self._note_from_device(logits, np.array(rows))
            return
        # not by torch, whose threads would keep spinning on the cores that the next forward pass needs
        logits = logits.float() if logits.stride(1) == 1 else logits.float().contiguous()
        places = array("q", rows)
        RECORD_TOP_K.function(
            logits.data_ptr(), 4 * logits.stride(0), logits.shape[1], places.buffer_info()[0], len(places), *self._held_at
        )

    def _note_from_device(self, logits: torch.Tensor, rows: np.ndarray) -> None:
        found, where = logits.float().topk(self._count)
        # one transfer, so that the device is waited for once
        both = torch.stack((found.view(torch.int32), where.int())).cpu().numpy()
        values, places = both[0].view(np.float32), both[1]
        sure = np.isfinite(values[:, [0, -1]]).all(1)
        values, places, rows = values[sure].astype(np.float64), places[sure], rows[sure]
        weights = np.exp(values - values[:, :1])
        self.tokens[rows], self.shares[rows] = places, weights / weights.sum(1, keepdims=True)
