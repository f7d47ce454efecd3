"""Lenient: rejection in which proposals count for less than they are, so that more is accepted. Lossy, within a stated bound.

A token drawn from a proposal is accepted with probability target / (`lenience` * proposal), at most 1; what follows a rejection
is as in `rejection`. With `lenience=1` this is `rejection`; the lower it is, the nearer the tokens come to the distribution of
the draft model. No token comes more often than its probability in the target divided by `lenience`, so what is all but
impossible stays so. A token that was not drawn counts as one from a proposal that is certain of it. Greedy requests are decided
as `match` decides them, so their text is that of plain decoding; leniency for these is the `gap` of `relaxed`.

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
    """lenience: what a proposal's probabilities are multiplied by before they are compared."""

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
