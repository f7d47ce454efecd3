"""Drafts in compiled code: what those of chains and those of trees are told alike, and what drawn ones are recorded with."""

from __future__ import annotations

import os
from itertools import accumulate
from operator import is_

import numpy as np
import torch

from paceline.kernels.native import layout
from paceline.noise import signed_seed
from paceline.sequence import Sequence


class DraftJob:
    """The record that says what is to be drafted, and the arrays it points to; a subclass makes room for them.

    record: its layout. call: address of the CALL record of the first step. step: address of the step's part. known: tokens the
    model has. address: of the record.
    """

    _temperatures: np.ndarray
    """float32 [S or more]."""
    _seeds: np.ndarray
    """int64 [S or more]."""

    def __init__(self, record: np.dtype, call: int, step: int, known: int) -> None:
        self._known = known
        self._told: list[Sequence] = []
        job = np.zeros(1, record)
        self._job, self.address = job[0], job.ctypes.data
        # whatever this process is allowed now, it never runs on more
        self._threads = os.cpu_count() or 1
        self._held = np.zeros((self._threads, layout.MOST_KEPT), np.int32)
        self._job["call"], self._job["step"], self._job["held"] = call, step, self._held.ctypes.data

    def _tell_of(self, sequences: list[Sequence]) -> None:
        """Tell what stays as it is while the same sequences are drafted for: nearly always those of the draft before."""
        if len(self._told) == len(sequences) and all(map(is_, self._told, sequences)):
            return
        # nothing is told until all is: whoever is interrupted in between begins anew
        self._told = []
        self._tell(sequences)
        self._told = sequences

    def _tell(self, sequences: list[Sequence]) -> None:
        count, ends = len(sequences), [sequence.stop_ids for sequence in sequences]
        self._temperatures[:count] = [sequence.params.temperature for sequence in sequences]
        self._seeds[:count] = [signed_seed(sequence.seed) for sequence in sequences]
        self._ends = np.array([token for tokens in ends for token in tokens], np.int64)
        self._end_bounds = np.array([0, *accumulate(map(len, ends))], np.int64)
        self._job["ends"], self._job["end_bounds"] = self._ends.ctypes.data, self._end_bounds.ctypes.data


def drawn_from(rows: np.ndarray, temperature: float, size: int) -> torch.Tensor:
    """float32 [n, `size`]: what tokens were drawn from, the softmax of rows / temperature; no numbers where a row is no
    distribution. rows: float32 [n, V], V at most `size`.

    numpy's, on one thread: from some ten thousand numbers on torch wakes its threads, which then spin for milliseconds on the
    cores that the target's forward needs.
    """
    probs = np.zeros((len(rows), size), np.float32)
    with np.errstate(invalid="ignore"):
        scores = rows / np.float32(temperature)
        scores -= scores.max(1, keepdims=True)
        np.exp(scores, out=probs[:, : rows.shape[1]])
        probs /= probs.sum(1, keepdims=True)
    return torch.from_numpy(probs)
