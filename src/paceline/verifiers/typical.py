"""Typical: a draft token is accepted if it is probable enough, given the target's uncertainty there. Lossy.

A token passes if its probability, after the request's sampling parameters, is above the lesser of `epsilon` and
`delta * exp(-entropy)`. The longest path of such tokens is accepted, and then the target's most likely token is emitted: without
drafts the text is greedy. At a temperature the tokens have neither the text nor the distribution of plain decoding. Greedy
requests are decided as under `match`, so their text is that of plain decoding.

Source: Medusa, Cai et al. (arXiv:2401.10774), section 2.3.1.
Exactness: none
Lossless: no
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from paceline.kernels.choices.distributions import distribution
from paceline.sampling import Context
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree
from paceline.verifiers.base import LongestPath, greedy_or, logarithms


class Options(BaseModel):
    """epsilon: a probability that is always enough; 0 accepts every possible token. delta: factor on exp(-entropy), which lowers
    the threshold where the target is uncertain."""

    model_config = ConfigDict(extra="forbid")

    epsilon: Annotated[float, Field(ge=0.0, le=1.0)] = 0.09
    delta: Annotated[float, Field(ge=0.0, le=1.0)] = 0.3


class Typical(LongestPath):
    name = "typical"

    def __init__(self, options: Options) -> None:
        self.options = options

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        return greedy_or(self.longest, sequences, trees, logits)

    def worth(self, probs: np.ndarray) -> np.ndarray:
        logs = logarithms(probs)
        entropy = -float(probs[probs > 0.0] @ logs[probs > 0.0])
        threshold = min(self.options.epsilon, self.options.delta * np.exp(-entropy))
        return np.where(probs > threshold, logs, -np.inf)

    def last(self, row: torch.Tensor, context: Context) -> int:
        return int(distribution(row, context).argmax())


def build(options: Options) -> Typical:
    return Typical(options)
