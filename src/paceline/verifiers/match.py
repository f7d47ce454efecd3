"""Match: a draft token is accepted if it is the token that plain decoding would pick at its position.

At the root the target chooses from its own distribution with that position's noise (argmax if greedy). If a child has the chosen
token, it is accepted, and the target chooses again there; if none has, the token is emitted and the walk ends. So the text
depends on the request alone: not on the drafter, the tree, the batch or a preemption.

Source: drafter-invariant verification, Daliri et al. (arXiv:2408.07978); for trees SpecInfer (arXiv:2305.09781), section 4.3
(sample, then match).
Exactness: text for every kind of proposal
Lossless: yes
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from paceline.sequence import Sequence
from paceline.spec import NoOptions as Options
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Exactness, Verifier, follow_choices


class Match(Verifier):
    name = "match"
    exactness = dict.fromkeys(Proposal, Exactness.TEXT)

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        return follow_choices(sequences, trees, logits)


def build(options: Options) -> Match:
    return Match()
