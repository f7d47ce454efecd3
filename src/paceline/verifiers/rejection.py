"""Rejection: one draft token per position, accepted with the ratio of its target probability to its draft probability.

A token sampled from a proposal is accepted with probability target / proposal, at most 1. On rejection a token is sampled from
the residual: the target's distribution minus the proposal, where that is positive. In a tree only the first child of every node
is tested. A token that was not sampled is accepted with its target probability.

At a temperature, a seed gives the same text again only for the request of the same number in an engine: draws depend on it too.

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
