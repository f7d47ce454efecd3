"""Relaxed: a draft token is accepted if it is among the target's top tokens and not much less likely than the best. Lossy.

A token passes if it is among the `top` most likely and its log-probability is at most `gap` below that of the most likely, after
the request's sampling parameters. The longest path of such tokens is accepted; after it the target chooses as in plain decoding.
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
    """top: how many of the most likely tokens are acceptable. gap: how far below the most likely, in nats."""

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
