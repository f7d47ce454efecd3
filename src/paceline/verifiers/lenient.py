"""Lenient: rejection with scaled-down draft probabilities, so that more is accepted. Lossy, within a stated bound.

A token sampled from a proposal is accepted with probability target / (`lenience` * proposal), at most 1; a rejection is handled
as in `rejection`. With `lenience=1` this is `rejection`; the lower it is, the closer the tokens come to the distribution of the
draft model. No token is emitted more often than its target probability divided by `lenience`, so nearly impossible tokens stay
so. A token that was not sampled counts as drafted with probability 1. Greedy requests are decided as under `match`, so their
text is that of plain decoding; for leniency there, use the `gap` of `relaxed`.

Source: Leviathan et al. (arXiv:2211.17192), appendix A.5; DistillSpec, Zhou et al. (arXiv:2310.08461).
Exactness: none
Lossless: no
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from paceline.tree import Proposal
from paceline.trials import Group, Trials
from paceline.verifiers.base import Exactness, NodeByNode


class Options(BaseModel):
    """lenience: factor on a proposal's probabilities before the comparison."""

    model_config = ConfigDict(extra="forbid")

    lenience: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5


class Lenient(NodeByNode):
    name = "lenient"
    exactness: Mapping[Proposal, Exactness] = {}
    reads_chain = True
    prefers = (Proposal.IID, Proposal.POINT)

    def __init__(self, options: Options) -> None:
        self.options = options

    def tested(self, target_probs: np.ndarray, group: Group) -> Trials:
        trials = super().tested(target_probs, group)
        try:
            while True:
                child, probability = next(trials)
                # a ratio that was cut to 1 is cut to 1 again after the division
                yield child, min(probability / self.options.lenience, 1.0)
        except StopIteration as ended:
            return ended.value


def build(options: Options) -> Lenient:
    return Lenient(options)
