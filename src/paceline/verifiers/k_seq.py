"""K-SEQ: independent drafts for one position are tested in turn, all with the same ratio, which grows with their number.

A token is accepted with probability target / (ratio * proposal), at most 1. The ratio, between 1 and the number of drafts, is
the smallest with which no token is emitted too often: there, the probability that any of the drafts is accepted equals that of a
single draft times the ratio. Drafts of equal text are tested together at the next position. Tokens chosen in another way are
tested as in `multi-round`.

Only several drafts for one position make a difference: with one, the default of a draft model, this is `rejection`. Ask for more
with `samples=` or `width=`, as in `model:PATH,samples=4`.

At a temperature, a seed gives the same text again only for the request of the same number in an engine: draws depend on it too.

Source: SpecTr, Sun et al. (arXiv:2310.15141).
Exactness: law for every kind of proposal; text when greedy
Lossless: yes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from paceline.spec import NoOptions as Options
from paceline.tree import Proposal
from paceline.trials import Group, Trials, normalised, ratio, recursive
from paceline.verifiers.base import NodeByNode

_HALVINGS = 40


class KSeq(NodeByNode):
    name = "k-seq"
    prefers = (Proposal.IID, Proposal.POINT)

    def trials(self, target_probs: np.ndarray, groups: Iterator[Group]) -> Trials:
        return super().trials(target_probs, _together(groups))

    def tested(self, target_probs: np.ndarray, group: Group) -> Trials:
        if group.kind is not Proposal.IID:
            return (yield from recursive(target_probs, group))
        proposal_probs = group.proposal_probs
        assert proposal_probs is not None
        count = len(group.tokens)
        scale = least_ratio(target_probs, proposal_probs, count)
        for node, token in zip(group.nodes, group.tokens, strict=True):
            yield node, min(ratio(target_probs, proposal_probs, token) / scale, 1.0)
        accepted = np.minimum(target_probs / scale, proposal_probs)
        once = float(accepted.sum())
        # where nothing can be accepted, nothing is subtracted
        often = (1.0 - (1.0 - once) ** count) / once if once > 0.0 else 0.0
        return normalised(target_probs - accepted * often, target_probs)


def _together(groups: Iterator[Group]) -> Iterator[Group]:
    """One source's independent draws from one proposal as one group, though their parents are several nodes of the same text.

    Their number is decided before any of them is drawn. For two sources it is not: where room is short, what the second may draft
    depends on what the first drew.
    """
    held: Group | None = None
    for group in groups:
        if held is not None and _alike(held, group):
            held = replace(held, nodes=(*held.nodes, *group.nodes), tokens=(*held.tokens, *group.tokens))
            continue
        if held is not None:
            yield held
        held = group
    if held is not None:
        yield held


def _alike(one: Group, other: Group) -> bool:
    if one.kind is not Proposal.IID or one.source != other.source or one.proposal_probs is None or other.proposal_probs is None:
        return False
    return np.array_equal(one.proposal_probs, other.proposal_probs)


def least_ratio(target_probs: np.ndarray, proposal_probs: np.ndarray, count: int) -> float:
    """The least ratio that is exact for `count` independent drafts, found by bisection from above: any larger one is exact too.

    target_probs, proposal_probs: float64 [V].
    """
    if count == 1:
        return 1.0
    both = np.flatnonzero((target_probs > 0.0) & (proposal_probs > 0.0))
    target_probs, proposal_probs = target_probs[both], proposal_probs[both]

    def exact(scale: float) -> bool:
        once = float(np.minimum(target_probs / scale, proposal_probs).sum())
        return 1.0 - (1.0 - once) ** count <= scale * once

    low, high = 1.0, float(count)
    if exact(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if exact(middle) else (middle, high)
    return high


def build(options: Options) -> KSeq:
    return KSeq()
