"""Block: a draft chain is verified as a whole, and its longest prefix that passes is accepted.

A running product of the ratios target / proposal is carried along the chain, capped at 1 at every token. So a token that the
target finds more likely than the draft did makes up for an earlier one that it finds less likely, and on average more tokens are
accepted than by testing one after another, never fewer. In a tree only the path of first children is verified. Tokens that were
not sampled count as point masses, which gain nothing from it.

At a temperature, a seed gives the same text again only for the request of the same number in an engine: draws depend on it too.

Source: Sun et al., Block Verification Accelerates Speculative Decoding (arXiv:2403.10444).
Exactness: law for every kind of proposal; text when greedy
Lossless: yes
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from paceline.draws import drawn, happens
from paceline.kernels.choices.distributions import DISTRIBUTION, distribution
from paceline.sampling import Context
from paceline.sequence import Sequence
from paceline.spec import NoOptions as Options
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.trials import groups_below, normalised, ratio
from paceline.verifiers.base import Exactness, Verifier, greedy_or


@dataclass(frozen=True)
class Chain:
    """A drafted chain of G tokens. target_probs: G + 1 distributions, float64 [V], the last behind the last token;
    proposal_probs: G, float64 [V]."""

    tokens: tuple[int, ...]
    target_probs: tuple[np.ndarray, ...]
    proposal_probs: tuple[np.ndarray, ...]

    @cached_property
    def kept(self) -> list[float]:
        """G + 1 numbers: the product of target / proposal up to each token, cut to 1 at every token."""
        kept = [1.0]
        for target, proposal, token in zip(self.target_probs, self.proposal_probs, self.tokens, strict=False):
            kept.append(min(kept[-1] * ratio(target, proposal, token), 1.0))
        return kept

    def _excess(self, length: int) -> np.ndarray:
        return np.maximum(self.kept[length] * self.target_probs[length] - self.proposal_probs[length], 0.0)

    def chance(self, length: int) -> float:
        """The probability that the first `length` tokens pass, whether longer parts do or not."""
        if length == len(self.tokens):
            return self.kept[length]
        excess = float(self._excess(length).sum())
        either = excess + (1.0 - self.kept[length])
        # both are 0 where target and proposal agree behind this part: then a longer part passes for certain
        return excess / either if either > 0.0 else 1.0

    def law(self, length: int) -> np.ndarray:
        """float64 [V]: the distribution of the token behind the first `length`, when these are what is accepted."""
        if length == len(self.tokens):
            return self.target_probs[length]
        return normalised(self._excess(length), self.target_probs[length])


class Block(Verifier):
    name = "block"
    reads_chain = True
    exactness = dict.fromkeys(Proposal, Exactness.LAW)
    prefers = (Proposal.IID, Proposal.POINT)
    kernels = (DISTRIBUTION,)

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        return greedy_or(_verified, sequences, trees, logits)


def _verified(sequence: Sequence, tree: DraftTree, logits: torch.Tensor) -> Verdict:
    path, chain = _first_chain(sequence, tree, logits)
    length = len(path)
    while length and not happens(chain.chance(length), sequence, "accept", path[length - 1]):
        length -= 1
    path = path[:length]
    last = drawn(chain.law(length), sequence, "residual", path[-1] if path else 0)
    return Verdict(path, (*chain.tokens[:length], last), length)


def _first_chain(sequence: Sequence, tree: DraftTree, logits: torch.Tensor) -> tuple[tuple[int, ...], Chain]:
    """The path of first children, and their distributions."""
    node, path, tokens = 0, [], []
    targets, proposals = [], []
    while True:
        targets.append(distribution(logits[node], Context(sequence, tuple(tokens))))
        group = next(groups_below(tree, (node,)), None)
        if group is None:
            return tuple(path), Chain(tuple(tokens), tuple(targets), tuple(proposals))
        node, token = group.nodes[0], group.tokens[0]
        path.append(node)
        tokens.append(token)
        point = np.zeros(len(targets[-1]))
        point[token] = 1.0
        proposals.append(point if group.proposal_probs is None else group.proposal_probs)
        if targets[-1][token] == 0.0:
            # neither it nor anything behind it can pass: the target's logits there, which may be NaN, are not read
            return tuple(path), Chain(tuple(tokens), (*targets, targets[-1]), tuple(proposals))


def build(options: Options) -> Block:
    return Block()
