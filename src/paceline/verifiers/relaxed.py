"""Relaxed: a drafted token is accepted where it is among the target's best and not much worse than the very best. Lossy.

A token is good enough if it is among the `top` likeliest and its log-probability is at most `gap` below that of the likeliest,
under the sampling of the request. The longest path of such tokens is accepted; after it the target chooses as in plain decoding.
Greedy requests with `top=1` get the text of plain decoding; with more, even greedy text may differ from it.

Source: SpecDec, Xia et al. (arXiv:2203.16487), section 3.2 (Spec-Verification); without the gap, the top-k rule of Stern et al.
(arXiv:1811.03115), section 5.1.
Exactness: none
Lossless: no
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from paceline.sampling import Context, choose
from paceline.verifiers.base import LongestPath, logarithms


class Options(BaseModel):
    """top: how many of the likeliest tokens will do. gap: how far below the likeliest, in nats."""

    model_config = ConfigDict(extra="forbid")

    top: Annotated[int, Field(ge=1, le=1_000_000)] = 3
    gap: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1.0


class Relaxed(LongestPath):
    name = "relaxed"

    def __init__(self, options: Options) -> None:
        self.options = options

    def worth(self, probs: np.ndarray) -> np.ndarray:
        logs = logarithms(probs)
        near = np.flatnonzero(logs >= logs.max() - self.options.gap)
        # of equal scores the first counts as better, as the greedy choice has it
        best = near[np.argsort(-logs[near], kind="stable")[: self.options.top]]
        worth = np.full(len(logs), -np.inf)
        worth[best] = logs[best]
        return worth

    def last(self, row: torch.Tensor, context: Context) -> int:
        return choose(row[None], [context])[0]


def build(options: Options) -> Relaxed:
    return Relaxed(options)
