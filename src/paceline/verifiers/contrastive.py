"""Contrastive: tokens follow a distribution that favours what the target finds more likely than the draft model does.

That distribution is not the target's: among tokens with at least `alpha` times the target's largest probability, scores are
`(1 + beta) log target - beta log amateur`, where the amateur is the draft model without sampling parameters. Logit bias and
penalties act on the target; temperature, top-k, top-p and min-p act on the scores. Drafts are sampled from the amateur and
tested against this distribution, which is kept exactly; greedy requests take the best score. A token with no probability under
the amateur, usually because the amateur's vocabulary lacks it, is not contrasted: its score is the target's alone.

Without the amateur's distribution there is nothing to contrast with, and the token follows the target's own, though the answer
is still reported as contrastive. That is so in every step without a draft: when a single token is left to generate, when the
cache has no room for a draft, past the end of the amateur's context window or after a token unknown to it, and for requests that
turn drafting off. It is also so at a node where the amateur's logits are NaN.

Source: speculative contrastive decoding, Yuan et al. (arXiv:2311.08981); the scores are those of Li et al. (arXiv:2210.15097) in
the form of O'Brien and Lewis (arXiv:2309.09117).
Exactness: none: its own law, that of contrastive decoding
Lossless: no
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Many
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from paceline.sampling import Context, narrowed, probabilities, shaped, target_scores
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Exactness, NodeByNode


class Options(BaseModel):
    """alpha: least probability of a token, as a share of the largest. beta: weight of the amateur."""

    model_config = ConfigDict(extra="forbid")

    alpha: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    beta: Annotated[float, Field(ge=0.0, le=100.0)] = 0.5


class Contrastive(NodeByNode):
    """Contrasts wherever the tree records the amateur's distribution. A model that drafts records it at every node of its tree,
    leaves included, but not where it is not asked: for a root with `Budget.some` False, beyond its context or its vocabulary, for
    a sequence whose `drafters` leave it out or whose `nodes` are 0; nor for a row that holds NaN. The verifier sees rows and no
    model, so it can neither compute a missing distribution nor wait for it: a verdict emits a token, and at such a node the token
    has the target's own law."""

    name = "contrastive"
    exactness: Mapping[Proposal, Exactness] = {}
    prefers = (Proposal.WITHOUT_REPLACEMENT, Proposal.IID, Proposal.POINT)
    amateur = True
    kernels = ()
    law = "contrastive"

    def __init__(self, options: Options) -> None:
        self.options = options

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        return [self.walked(*one) for one in zip(sequences, trees, logits, strict=True)]

    def target_probs(
        self, sequence: Sequence, ancestors: tuple[int, ...], row: torch.Tensor, amateur: torch.Tensor | None
    ) -> np.ndarray:
        context = Context(sequence, ancestors)
        if amateur is None:
            scores = target_scores(row, context)
        else:
            scores = narrowed(self.contrasted(shaped(row, context), amateur), sequence.params)
        probs = probabilities(scores, sequence)
        if sequence.params.temperature > 0.0:
            return probs
        choice = np.zeros(len(probs))
        choice[int(scores.argmax())] = 1.0
        return choice

    def contrasted(self, logits: torch.Tensor, amateur: torch.Tensor) -> torch.Tensor:
        """float64 [V]: the contrastive scores. logits: the target's, shaped; amateur: a distribution; both float32 [V]."""
        expert = logits.double().log_softmax(-1)
        against = amateur.to(expert.device).double().log()
        # tokens that the amateur lacks have probability 0 there, which must not count as its strongest objection
        scores = expert + self.options.beta * (expert - against.where(against > -torch.inf, expert))
        return scores.masked_fill(expert < expert.max() + np.log(self.options.alpha), -torch.inf)


def build(options: Options) -> Contrastive:
    return Contrastive(options)
