"""Noted drafts: were drafted tokens really drawn from what their drafter recorded?

A verifier that keeps a distribution relies on recorded proposals. A drafter that records another distribution than it drew from
changes the output, however right the verifier is. So drafted tokens are placed in their proposals as those of answers are in
the target's distribution (`law`): where the proposals are true, these ranks are independent uniform numbers too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many
from contextlib import contextmanager
from itertools import chain, islice

import numpy as np
import torch

from paceline.noise import stream, uniform
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.step import Verdict
from paceline.tree import DraftTree
from paceline.trials import groups_below
from paceline.verifiers.base import Verifier


def rank_of(token: int, probs: np.ndarray, share: float) -> float:
    """The total probability of tokens that are likelier than this one, or equal with smaller ids, plus a share of its own.
    probs: float64 [V]. share: from 0 to 1."""
    likelier = probs[probs > probs[token]].sum() + probs[:token][probs[:token] == probs[token]].sum()
    return float(likelier + share * probs[token])


@contextmanager
def noted_drafts(speculative: Speculative, most: int) -> Iterator[list[float]]:
    """A context that collects up to `most` ranks of tokens drafted within: of every node's first child, which was drawn from the
    whole proposal whatever the kind."""
    noting = _Noting(speculative.verifier, most)
    speculative.verifier = noting
    try:
        yield noting.ranks
    finally:
        speculative.verifier = noting.verifier


class _Noting(Verifier):
    """A verifier that wraps another one, and ranks the drafts it is given."""

    def __init__(self, verifier: Verifier, most: int) -> None:
        self.verifier, self._most, self.ranks = verifier, most, list[float]()
        self.name, self.exactness, self.law = verifier.name, verifier.exactness, verifier.law

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        for sequence, tree in zip(sequences, trees, strict=True):
            drawn = chain.from_iterable(groups_below(tree, (node,)) for node in range(tree.candidates) if tree.kind.drawn)
            for group in islice(drawn, self._most - len(self.ranks)):
                share = uniform(stream(sequence.draws_seed, "check", group.nodes[0]), len(sequence.tokens))
                if group.proposal_probs is not None:
                    self.ranks.append(rank_of(group.tokens[0], group.proposal_probs, share))
        return self.verifier(sequences, trees, logits)
