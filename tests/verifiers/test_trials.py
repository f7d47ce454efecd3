"""The tests at one node: their law for any two distributions, and their acceptance compared with each other and the optimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies

from enumeration import every_draw, node_law
from paceline.compose import build_verifier
from paceline.tree import Proposal
from paceline.trials import Group, ProposalError, normalised, ratio
from paceline.verifiers.base import NodeByNode
from paceline.verifiers.k_seq import least_ratio

RULES = ["rejection", "multi-round", "k-seq", "spechub"]
OWN = {"rejection": Proposal.IID, "multi-round": Proposal.WITHOUT_REPLACEMENT, "k-seq": Proposal.IID, "spechub": Proposal.HUB}
"""The kind that each rule asks for."""
MANY = settings(max_examples=60, deadline=None)


@strategies.composite
def distributions(draw: strategies.DrawFn, size: int) -> np.ndarray:
    """Distributions with zeros, ties and near-certainties."""
    weight = strategies.one_of(strategies.just(0.0), strategies.just(1.0), strategies.floats(1e-9, 1e3))
    weights = np.array(draw(strategies.lists(weight, min_size=size, max_size=size)))
    assume(weights.sum() > 0)
    return weights / weights.sum()


@strategies.composite
def pairs(draw: strategies.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A target and a proposal; sometimes they are equal."""
    size = draw(strategies.integers(2, 6))
    target = draw(distributions(size))
    return target, target if draw(strategies.integers(0, 9)) == 0 else draw(distributions(size))


def rule_of(name: str) -> NodeByNode:
    rule = build_verifier(name)
    assert isinstance(rule, NodeByNode)
    return rule


def best_possible(target_probs: np.ndarray, draws: list[tuple[float, list[Group]]]) -> float:
    """The most any rule can accept of these draws: minimum over token sets of 1 + target(set) - P(all drafts lie in the set)."""
    size = len(target_probs)
    sets = chain.from_iterable(combinations(range(size), count) for count in range(size + 1))
    return min(
        1 + sum(target_probs[token] for token in those) - sum(w for w, (group,) in draws if {*group.tokens} <= {*those})
        for those in sets
    )


@MANY
@given(pairs())
def test_accepted_mass_and_residual_add_up_to_the_target(pair: tuple[np.ndarray, np.ndarray]) -> None:
    target, proposal = pair
    both = np.minimum(target, proposal)
    assert np.abs(both + (1 - both.sum()) * normalised(target - proposal, target) - target).max() < 1e-12


@pytest.mark.parametrize("kind", Proposal)
@pytest.mark.parametrize("rule", RULES)
@MANY
@given(pairs(), strategies.integers(1, 3))
def test_a_node_emits_the_law_of_the_target(rule: str, kind: Proposal, pair: tuple[np.ndarray, np.ndarray], count: int) -> None:
    target, proposal = pair
    count = min(count, 2 if kind is Proposal.HUB else len(target))
    found = node_law(rule_of(rule), target, every_draw(proposal, kind, count))
    assert np.abs(found.emitted - target).max() < 1e-12


@pytest.mark.parametrize("rule", RULES)
@MANY
@given(pairs(), strategies.integers(1, 3))
def test_acceptance_of_several_draws_lies_between_that_of_one_draw_and_the_best_transport(
    rule: str, pair: tuple[np.ndarray, np.ndarray], count: int
) -> None:
    target, proposal = pair
    kind = OWN[rule]
    draws = every_draw(proposal, kind, min(count, 2 if kind is Proposal.HUB else count))
    accepted = node_law(rule_of(rule), target, draws).accepted
    single = float(np.minimum(target, proposal).sum())
    # k-seq's ratio is found to 2^-40
    assert accepted >= single - 1e-11
    assert accepted <= best_possible(target, draws) + 1e-12
    if count == 1 or rule == "rejection":
        assert accepted == pytest.approx(single, abs=1e-12)


@MANY
@given(pairs())
def test_several_sources_are_tested_one_after_another_and_keep_the_law(pair: tuple[np.ndarray, np.ndarray]) -> None:
    target, proposal = pair
    for rule in RULES:
        kind = OWN[rule]
        draws = [
            (one * two, [*groups, *(_shifted(group) for group in others)])
            for one, groups in every_draw(proposal, kind, 2)
            for two, others in every_draw(proposal[::-1].copy(), kind, 2)
        ]
        assert np.abs(node_law(rule_of(rule), target, draws).emitted - target).max() < 1e-12


def _shifted(group: Group) -> Group:
    return replace(group, nodes=tuple(node + 10 for node in group.nodes))


@pytest.mark.parametrize("kind", [Proposal.IID, Proposal.WITHOUT_REPLACEMENT, Proposal.HUB])
def test_the_bound_over_sets_is_the_best_transport(kind: Proposal) -> None:
    """The linear program is a flow from draws to the tokens they contain, and from those to the target."""
    networkx = pytest.importorskip("networkx", reason="no solver of flows is installed")
    noise = np.random.default_rng(3)
    for _ in range(10):
        target, proposal = noise.dirichlet(np.ones(4) * 0.7), noise.dirichlet(np.ones(4) * 0.7)
        draws = every_draw(proposal, kind, 2)
        graph = networkx.DiGraph()
        for place, (weight, (group,)) in enumerate(draws):
            graph.add_edge("start", ("draw", place), capacity=weight)
            for token in {*group.tokens}:
                graph.add_edge(("draw", place), token)
        for token, probability in enumerate(target):
            graph.add_edge(token, "end", capacity=probability)
        assert networkx.maximum_flow_value(graph, "start", "end") == pytest.approx(best_possible(target, draws), abs=1e-9)


@MANY
@given(pairs(), strategies.integers(1, 5))
def test_the_ratio_of_k_seq_is_the_least_that_is_exact(pair: tuple[np.ndarray, np.ndarray], count: int) -> None:
    target, proposal = pair
    scale = least_ratio(target, proposal, count)
    assert 1 <= scale <= count

    def excess(at: float) -> float:
        once = np.minimum(target / at, proposal).sum()
        return 1 - (1 - once) ** count - at * once

    assert excess(scale) <= 1e-15
    assert scale == 1 or excess(scale - 1e-9 * count) > -1e-12


def test_acceptance_in_one_example_rises_from_iid_to_without_replacement_to_hub() -> None:
    """Without replacement more is accepted than with, a hub more than either here, and none more than the best transport."""
    target, proposal = np.array([0.3, 0.3, 0.2, 0.1, 0.1]), np.array([0.6, 0.2, 0.1, 0.05, 0.05])
    accepted = {}
    for name, rule, kind in [
        ("with", "multi-round", Proposal.IID),
        ("without", "multi-round", Proposal.WITHOUT_REPLACEMENT),
        ("k-seq", "k-seq", Proposal.IID),
        ("hub", "spechub", Proposal.HUB),
    ]:
        draws = every_draw(proposal, kind, 2)
        accepted[name] = node_law(rule_of(rule), target, draws).accepted
        assert accepted[name] <= best_possible(target, draws) + 1e-12
    assert 0.7 < accepted["with"] < accepted["without"] < accepted["hub"] <= 1
    assert accepted["k-seq"] > 0.7


def test_a_token_that_its_proposal_cannot_give_is_a_fault_and_not_accepted() -> None:
    proposal = np.array([0.5, 0.5, 0.0])
    with pytest.raises(ProposalError):
        ratio(np.ones(3) / 3, proposal, 2)
    for rule in ("rejection", "multi-round", "k-seq"):
        with pytest.raises(ProposalError):
            next(rule_of(rule).trials(np.ones(3) / 3, iter([Group((1,), (2,), Proposal.IID, proposal)])))
    for tokens in [(2, 0), (0, 2), (1, 2)]:
        with pytest.raises(ProposalError):
            next(rule_of("spechub").trials(np.ones(3) / 3, iter([Group((1, 2), tokens, Proposal.HUB, proposal, 0)])))
