"""Multi-round: the children of a node are tested in turn, each against what earlier rejections left of the target's distribution.

Every rejection subtracts the proposal from the target's distribution, and the next child is tested against the remainder.
Children sampled without replacement come from what earlier siblings left of the proposal, and are tested against that; they are
accepted more often, and are the default. Children of several draft models are each tested against their own model's proposal.

Only siblings make a difference: with one child per node this is `rejection`. A model drafts several with `width=` or `samples=`,
as in `model:PATH,width=3`.

At a temperature, a seed gives the same text again only for the request of the same number in an engine: draws depend on it too.

Source: SpecInfer (arXiv:2305.09781), section 4.3; without replacement Sequoia (arXiv:2402.12374) and Jeon et al.
(arXiv:2402.14160).
Exactness: law for every kind of proposal; text when greedy
Lossless: yes
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from paceline.tree import Proposal
from paceline.verifiers.base import NodeByNode


class Options(BaseModel):
    """replacement: whether a model samples siblings with or without replacement."""

    model_config = ConfigDict(extra="forbid")

    replacement: Literal["with", "without"] = "without"


class MultiRound(NodeByNode):
    name = "multi-round"

    def __init__(self, options: Options) -> None:
        drawn = Proposal.IID if options.replacement == "with" else Proposal.WITHOUT_REPLACEMENT
        self.prefers = (drawn, Proposal.POINT)


def build(options: Options) -> MultiRound:
    return MultiRound(options)
