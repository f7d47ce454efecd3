"""Trials: with which probability each child of a node is to be accepted, so that what is emitted there has the target's law.

Pure functions in float64: they yield probabilities of acceptance, and the caller, which walks the tree, draws the outcomes; so a
unit test can follow every outcome instead. All of them rely on one condition, that drafts are blind: a token that was drawn is
submitted, whatever it turned out to be.

Source: recursive rejection after SpecInfer (arXiv:2305.09781), section 4.3, and, without replacement, Sequoia
(arXiv:2402.12374); the single test is that of Leviathan et al. (arXiv:2211.17192), section 2.3.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import torch

from paceline.draws import likeliest
from paceline.tree import DraftTree, Proposal

Trials = Generator[tuple[int, float], None, np.ndarray]
"""Yields (child node, the probability that it is accepted, given that all before it were not); returns the distribution,
float64 [V], of the token that is emitted where none was. It is not resumed once a child was accepted."""


class ProposalError(ValueError):
    """A drafted token that cannot come from its recorded proposal: a fault of its drafter, never of a user."""


@dataclass(frozen=True)
class Group:
    """Children of one node that one source chose together, in the order of their draws.

    proposal_probs: float64 [V], what they were drawn from; None for a deterministic choice, a point mass each. hub: the
    likeliest token of the proposal, where the kind is HUB. source: the drafter.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    kind: Proposal = Proposal.POINT
    proposal_probs: np.ndarray | None = None
    hub: int | None = None
    source: str = ""

    def first(self) -> Group:
        """Its first child alone: a draw from the proposal, whatever came after it."""
        return replace(self, nodes=self.nodes[:1], tokens=self.tokens[:1])


def groups_below(tree: DraftTree, nodes: Many[int]) -> Iterator[Group]:
    """The children of `nodes`, which all stand for the same text, by parent and source."""
    families: dict[tuple[int, str], list[int]] = {}
    for parent in nodes:
        for child in tree.siblings[parent]:
            families.setdefault((parent, tree.sources[child]), []).append(child)
    for place, children in families.items():
        tokens = tuple(tree.tokens[child] for child in children)
        if not tree.kind.drawn:
            yield Group(tuple(children), tokens)
            continue
        row = tree.proposals.get(place)
        if row is None:
            raise ProposalError(f"'{place[1]}' drew tokens and does not say from what")
        hub = likeliest(row) if tree.kind is Proposal.HUB else None
        yield Group(tuple(children), tokens, tree.kind, recorded(row), hub, place[1])


def recorded(row: torch.Tensor) -> np.ndarray:
    """float64 [V]: a recorded proposal, normalised to the distribution that was drawn from. row: float32 [V]."""
    probs = row.cpu().numpy().astype(np.float64)
    return probs / probs.sum()


def ratio(target_probs: np.ndarray, proposal_probs: np.ndarray, token: int) -> float:
    """target_probs[token] / proposal_probs[token] of a drafted token; both are float64 [V]. Raises ProposalError where its
    proposal gives it no probability."""
    if not proposal_probs[token] > 0.0:
        raise ProposalError(f"token {token} was drafted, and its proposal gives it no probability")
    return float(target_probs[token] / proposal_probs[token])


def normalised(weights: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """float64 [V]: the weights, float64 [V], as a distribution, negative ones counted as 0; `otherwise`, float64 [V], where
    nothing is left of them."""
    weights = np.maximum(weights, 0.0)
    mass = weights.sum()
    return weights / mass if mass > 0.0 else otherwise


def without(probs: np.ndarray, token: int) -> np.ndarray:
    """float64 [V]: the distribution probs, float64 [V], given that the token is not this one; unchanged where there is no
    other."""
    left = probs.copy()
    left[token] = 0.0
    return normalised(left, probs)


def recursive(target_probs: np.ndarray, group: Group) -> Trials:
    """Test child after child against what earlier rejections left of the target; exact for every kind of proposal.

    target_probs: float64 [V], the target's distribution at the node. group: the children, drawn from one proposal.

    A draw without replacement comes from what earlier siblings left of the proposal. The second token of a HUB pair is either
    such a draw, where the first was the hub, or the hub itself, a point mass.
    """
    proposal_probs = group.proposal_probs
    for place, (node, token) in enumerate(zip(group.nodes, group.tokens, strict=True)):
        if proposal_probs is None:
            yield node, float(target_probs[token])
            target_probs = without(target_probs, token)
            continue
        yield node, min(ratio(target_probs, proposal_probs, token), 1.0)
        target_probs = normalised(target_probs - proposal_probs, target_probs)
        if group.kind is Proposal.HUB and place == 0 and token != group.hub:
            proposal_probs = None
        elif group.kind is not Proposal.IID:
            left = proposal_probs.copy()
            left[token] = 0.0
            proposal_probs = normalised(left, left)
    return target_probs
