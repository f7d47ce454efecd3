"""Rejection: one drafted token per position, accepted with the ratio of the target's probability to the draft's.

A token drawn from a proposal is accepted with probability target / proposal, at most 1. On rejection a token is drawn from the
residual: what the target's distribution has above the proposal. Of a tree only the first child of every node is looked at. A
token that was not drawn is accepted with the probability that the target gives it.

A seed gives the same text again only as the same request, by number, of an engine: draws hang on that too, unless greedy.

Source: Leviathan et al. (arXiv:2211.17192), section 2.3; Chen et al. (arXiv:2302.01318), algorithm 2.
Exactness: law for every kind of proposal; text when greedy
Lossless: yes
"""

from __future__ import annotations

from paceline.spec import NoOptions as Options
from paceline.tree import Proposal
from paceline.verifiers.base import NodeByNode


class Rejection(NodeByNode):
    name = "rejection"
    reads_chain = True
    prefers = (Proposal.IID, Proposal.POINT)


def build(options: Options) -> Rejection:
    return Rejection()
