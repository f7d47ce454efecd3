"""Typical: a drafted token is accepted where it is probable enough for how uncertain the target is there. Lossy.

A token is good enough if its probability is above the lesser of `epsilon` and `delta * exp(-entropy)`, under the sampling of the
request. The longest path of such tokens is accepted, and after it the target's likeliest token is emitted: without drafts the
text is greedy. At a temperature the tokens have neither the text nor the distribution of plain decoding. Greedy requests are
decided as `match` decides them, so their text is that of plain decoding.

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
    """epsilon: a probability that is always enough; 0 accepts whatever is possible. delta: how much less will do where the
    target is uncertain."""

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
