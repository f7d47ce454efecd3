"""Small law: does a verifier keep a distribution that is known exactly?

In a model's own vocabulary the errors of a slightly wrong verifier look like chance for a long time. Here there are four tokens,
a target and a draft that often disagree, and thousands of drafts: each of the few possible texts, of one to three tokens, has a
known probability, with which its frequency is compared. What a step emits is continued by the target itself, however many
tokens were accepted.

Source: the bound is the empirical Bernstein inequality of Maurer and Pontil (arXiv:0907.3740), theorem 4.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass
from math import log, prod, sqrt

import numpy as np
import torch

from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Exactness, Verifier

DRAFTS = 65536
"""Drafts per kind of proposal."""
_SIZE = 4
_TARGET = np.array([np.roll([0.5, 0.3, 0.15, 0.05], shift) for shift in range(_SIZE)])
_DRAFT = np.array([np.roll([0.1, 0.15, 0.25, 0.5], shift) for shift in range(_SIZE)])
"""Distributions of the next token; the text before it determines which one applies (`_place`)."""
_LOGITS = torch.from_numpy(np.log(_TARGET).astype(np.float32))
_PROPOSALS = tuple(torch.from_numpy(_DRAFT.astype(np.float32)))
_WIDTHS = (2, 1)
"""Children per node, by level."""
_SOURCE = "small"
_TOGETHER = 256
"""Drafts that are judged in one call."""
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class SmallFit:
    """How far the frequency of a text in `drafts` drafts of a kind is from its probability: the text farthest off for its
    bound."""

    kind: Proposal
    drafts: int
    deviation: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.deviation < self.bound


def small_kinds(verifier: Verifier) -> list[Proposal]:
    """The kinds that a verifier is tested with: those it prefers, except COUPLED, and POINT, where it declares that it keeps the
    distribution."""
    kinds = dict.fromkeys((*verifier.prefers, Proposal.POINT))
    return [kind for kind in kinds if kind is not Proposal.COUPLED and verifier.exactness.get(kind) is Exactness.LAW]


def small_fit(verifier: Verifier, kind: Proposal, false_alarm: float) -> SmallFit:
    """Test a verifier on `DRAFTS` drafts. false_alarm: the largest probability that one that keeps the law fails."""
    whole, begun = Counter[Tokens](), Counter[Tokens]()
    for text in itertools.chain.from_iterable(_emitted(verifier, kind)):
        whole[text] += 1
        begun.update(text[:length] for length in range(1, len(text) + 1))
    texts = [text for length in range(len(_WIDTHS) + 1) for text in itertools.product(range(_SIZE), repeat=length + 1)]
    chance = log(4 * len(texts) / false_alarm)
    worst = SmallFit(kind, DRAFTS, 0.0, 1.0)
    for text in texts:
        steps = [float(_TARGET[_place(text[:at]), token]) for at, token in enumerate(text)]
        # steps that emitted a prefix of it, which the target continues, and steps that emitted all of it
        shares = [(whole[text[:at]] / DRAFTS, prod(steps[at:])) for at in range(1, len(text))] + [(begun[text] / DRAFTS, 1.0)]
        mean, square = (sum(share * rest**power for share, rest in shares) for power in (1, 2))
        bound = sqrt(2 * max(square - mean**2, 0.0) * chance / DRAFTS) + 7 * chance / (3 * (DRAFTS - 1))
        found = SmallFit(kind, DRAFTS, abs(mean - prod(steps)), bound)
        worst = max(worst, found, key=lambda fit: fit.deviation / fit.bound)
    return worst


def _emitted(verifier: Verifier, kind: Proposal) -> Iterator[list[Tokens]]:
    """The tokens emitted for the drafts, call by call."""
    dice, params = np.random.default_rng(0), SamplingParams(temperature=1.0, max_tokens=len(_WIDTHS) + 1)
    for first in range(0, DRAFTS, _TOGETHER):
        sequences = [Sequence(key, (0,), params, seed=key) for key in range(first, min(first + _TOGETHER, DRAFTS))]
        trees = [_drafted(kind, dice) for _ in sequences]
        verdicts = verifier(sequences, trees, [_logits(tree) for tree in trees])
        yield [verdict.tokens for verdict in verdicts]


def _place(text: Many[int]) -> int:
    """The index of the distribution that applies behind these tokens, which follow the root."""
    return sum([(place + 1) * (token + 1) for place, token in enumerate(text)]) % _SIZE


def _logits(tree: DraftTree) -> torch.Tensor:
    """float32 [N, V]: the target's at the nodes of a tree."""
    return _LOGITS[[_place([tree.tokens[node] for node in tree.path(at)]) for at in range(len(tree))]]


def _drafted(kind: Proposal, dice: np.random.Generator) -> DraftTree:
    """A draft of a kind, drawn with random numbers that no verifier uses."""
    tokens, parents, proposals, texts = [0], [-1], dict[tuple[int, str], torch.Tensor](), list[Tokens]([()])
    level = [0]
    for width in _WIDTHS:
        below = []
        for node in level:
            place = _place(texts[node])
            if kind.drawn:
                proposals[node, _SOURCE] = _PROPOSALS[place]
            for token in _siblings(kind, _DRAFT[place], width, dice):
                below.append(len(tokens))
                tokens.append(token)
                parents.append(node)
                texts.append((*texts[node], token))
        level = below
    sources = ("", *[_SOURCE] * (len(tokens) - 1))
    return DraftTree(tuple(tokens), tuple(parents), kind, proposals, sources)


def _siblings(kind: Proposal, probs: np.ndarray, width: int, dice: np.random.Generator) -> list[int]:
    """Children of one node, by the definition of each kind."""
    if not kind.drawn:
        return np.argsort(-probs)[:width].tolist()
    found, left = list[int](), probs.copy()
    for place in range(width):
        if kind is Proposal.HUB and place == 1 and found[0] != probs.argmax():
            found.append(int(probs.argmax()))
            continue
        # a product may be rounded to the sum itself
        found.append(min(int(left.cumsum().searchsorted(dice.random() * left.sum(), side="right")), len(left) - 1))
        if kind is not Proposal.IID:
            left[found[-1]] = 0.0
    return found
