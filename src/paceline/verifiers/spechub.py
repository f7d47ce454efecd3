"""SpecHub: pairs of drafts, one of them always the most likely token, tested by a transport plan that is cheap to compute.

The first token of a pair is sampled, and the second is the hub, the draft's most likely token; if the first is the hub, the
second is sampled from the others. So every pair contains the hub, and probability that a pair cannot give to its other token
goes to the hub. Tokens chosen in another way are tested as in `multi-round`.

Only pairs make a difference: with one child per node this is `rejection`. A model drafts pairs with `width=2`, as in
`model:PATH,width=2`.

At a temperature, a seed gives the same text again only for the request of the same number in an engine: draws depend on it too.

Source: SpecHub, Sun et al. (arXiv:2411.05289).
Exactness: law for every kind of proposal; text when greedy
Lossless: yes
"""

from __future__ import annotations

import numpy as np

from paceline.spec import NoOptions as Options
from paceline.tree import Proposal
from paceline.trials import Group, ProposalError, Trials, normalised, recursive
from paceline.verifiers.base import NodeByNode


class SpecHub(NodeByNode):
    name = "spechub"
    prefers = (Proposal.HUB, Proposal.POINT)

    def tested(self, target_probs: np.ndarray, group: Group) -> Trials:
        if group.kind is not Proposal.HUB or len(group.tokens) != 2:
            return (yield from recursive(target_probs, group))
        proposal_probs, hub = group.proposal_probs, group.hub
        assert proposal_probs is not None
        assert hub is not None
        places = dict(zip(group.tokens, group.nodes, strict=True))
        other = group.tokens[1] if group.tokens[0] == hub else group.tokens[0]
        if hub not in places or other == hub:
            raise ProposalError("a pair was drafted that does not hold its proposal's likeliest token and another")
        # the probability of the pairs (x, hub) and (hub, x), by x
        second = proposal_probs.copy()
        second[hub] = 0.0
        first = second * (proposal_probs[hub] / second.sum())
        to_second = np.minimum(target_probs, second)
        to_first = np.minimum(target_probs - to_second, first)
        pairs, given = (first, to_first) if group.tokens[0] == hub else (second, to_second)
        if not pairs[other] > 0.0:
            raise ProposalError(f"token {other} was drafted, and its proposal gives it no probability")
        yield places[other], float(given[other] / pairs[other])
        left = float((second - to_second).sum() + (first - to_first).sum())
        held = float(target_probs[hub])
        # nothing is left where no pair is ever refused
        yield places[hub], min(held / left, 1.0) if left > 0.0 else 1.0
        rest = target_probs - to_second - to_first
        rest[hub] = held - min(held, left)
        return normalised(rest, target_probs)


def build(options: Options) -> SpecHub:
    return SpecHub()
