"""Tree shapes: the dynamic programme against published numbers, brute force and random trees; Leviathan's formulas for chains."""

from __future__ import annotations

import random
from collections.abc import Sequence as Many
from itertools import pairwise, product

import pytest
from hypothesis import given, settings, strategies as st

from formulas import expected_tokens as of_chain, improvement, operations, optimal_length
from paceline.learning.acceptance import expected_tokens
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import Ranks, Shape, brush, caterpillar, children, optimal_tree

still = settings(derandomize=True, deadline=None, max_examples=60, database=None)
ACCEPTANCE = (0.6, 0.2, 0.08)
rates = st.lists(st.floats(0.0, 0.5), min_size=1, max_size=4).map(lambda some: tuple(rate / len(some) * 2 for rate in some))
falling = rates.map(lambda some: tuple(sorted(some, reverse=True)))
chances = st.floats(0.0, 1.0)


def tree_of(shape: Shape, acceptance: Many[float]) -> DraftTree:
    """A tree of that shape, each node with the acceptance rate of its rank among siblings."""
    rank: dict[int, int] = {}
    confidences = [1.0]
    for parent in shape[1:]:
        place = rank.get(parent, 0)
        rank[parent] = place + 1
        confidences.append(acceptance[place] if place < len(acceptance) else 0.0)
    return DraftTree(tuple(range(len(shape))), shape, Proposal.POINT, confidences=tuple(confidences))


def worth(shape: Shape, acceptance: Many[float]) -> float:
    return expected_tokens(tree_of(shape, acceptance))


@pytest.mark.parametrize(
    ("size", "best", "chain"), [(4, 2.176, 2.176), (8, 2.7456, 2.458), (16, 3.262, 2.499), (32, 3.7668, 2.5)]
)
def test_optimal_trees_are_worth_what_others_computed(size: int, best: float, chain: float) -> None:
    """Sizes count the root."""
    shape = optimal_tree(ACCEPTANCE, size - 1, size)
    assert len(shape) == size
    assert worth(shape, ACCEPTANCE) == pytest.approx(best, abs=5e-4)
    assert worth(caterpillar(size - 1), ACCEPTANCE) == pytest.approx(chain, abs=5e-4)


def every_shape(nodes: int) -> list[Shape]:
    return [(-1, *parents) for parents in product(*(range(node) for node in range(1, nodes + 1)))]


@pytest.mark.parametrize("acceptance", [(0.6, 0.2, 0.08), (0.3, 0.3, 0.3), (0.1, 0.5), (0.9,), (0.0, 0.7, 0.2), (0.2, 0.1, 0.4)])
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_no_tree_of_its_size_is_better(acceptance: tuple[float, ...], depth: int) -> None:
    """Also where later siblings are likelier."""
    for nodes in range(1, 6):
        found = worth(optimal_tree(acceptance, nodes, depth), acceptance)
        shallow = [shape for shape in every_shape(nodes) if max(tree_of(shape, acceptance).depth) <= depth]
        allowed = [shape for shape in shallow if max(map(shape.count, shape[1:])) <= len(acceptance)]
        assert found >= max((worth(shape, acceptance) for shape in allowed), default=1.0) - 1e-12


@still
@given(falling, st.integers(1, 24), st.integers(1, 8), st.integers(0, 2**32))
def test_no_random_tree_is_better(acceptance: tuple[float, ...], nodes: int, depth: int, seed: int) -> None:
    draw = random.Random(seed)
    shape, levels = [-1], [0]
    for _ in range(nodes):
        parent = draw.choice([node for node, level in enumerate(levels) if level < depth])
        shape.append(parent)
        levels.append(levels[parent] + 1)
    assert worth(optimal_tree(acceptance, nodes, depth), acceptance) >= worth(tuple(shape), acceptance) - 1e-12


@still
@given(falling, st.integers(1, 20), st.integers(1, 6))
def test_the_first_nodes_are_the_best_tree_of_fewer(acceptance: tuple[float, ...], nodes: int, depth: int) -> None:
    shape = optimal_tree(acceptance, nodes, depth)
    for fewer in range(1, len(shape)):
        best = optimal_tree(acceptance, fewer, depth)
        assert worth(shape[: fewer + 1], acceptance) == pytest.approx(worth(best, acceptance))


@still
@given(rates, st.integers(1, 20), st.integers(1, 6))
def test_more_nodes_and_more_levels_are_never_worse(acceptance: tuple[float, ...], nodes: int, depth: int) -> None:
    less = worth(optimal_tree(acceptance, nodes, depth), acceptance)
    assert worth(optimal_tree(acceptance, nodes + 1, depth), acceptance) >= less - 1e-12
    assert worth(optimal_tree(acceptance, nodes, depth + 1), acceptance) >= less - 1e-12


@still
@given(chances, st.integers(1, 20))
def test_with_one_child_each_the_best_tree_is_the_chain(acceptance: float, nodes: int) -> None:
    shape = optimal_tree((acceptance,), nodes, nodes)
    assert shape == caterpillar(len(shape) - 1)
    assert worth(shape, (acceptance,)) == pytest.approx(of_chain(acceptance, nodes), abs=1e-6)


@pytest.mark.parametrize("nodes", [3, 9, 20])
def test_what_is_expected_of_a_tree_is_what_happens(nodes: int) -> None:
    """Sequoia's expectation against simulated walks that accept at most one child at every node."""
    tree, draw = tree_of(optimal_tree(ACCEPTANCE, nodes, 6), ACCEPTANCE), random.Random(nodes)
    emitted, walks = 0, 40_000
    for _ in range(walks):
        node: int | None = 0
        while node is not None:
            emitted += 1
            luck, siblings = draw.random(), iter(tree.siblings[node])
            node = next((child for child in siblings if (luck := luck - tree.confidences[child]) < 0), None)
    assert emitted / walks == pytest.approx(expected_tokens(tree), abs=0.03)


def test_plain_shapes() -> None:
    assert caterpillar(3) == (-1, 0, 1, 2)
    assert caterpillar(3, 2) == (-1, 0, 0, 1, 1, 3, 3)
    assert brush(3, 2) == (-1, 0, 0, 0, 1, 2, 3)
    assert optimal_tree(ACCEPTANCE, 0, 4) == optimal_tree(ACCEPTANCE, 4, 0) == (-1,)


@still
@given(rates, st.integers(1, 16), st.integers(1, 5), st.integers(0, 16), st.integers(0, 5))
def test_a_shape_within_a_budget_keeps_its_first_nodes(
    acceptance: tuple[float, ...], nodes: int, depth: int, room: int, levels: int
) -> None:
    shape = optimal_tree(acceptance, nodes, depth)
    tree = DraftTree(tuple(range(len(shape))), shape)
    kept = [node for node in range(1, len(shape)) if tree.depth[node] <= levels][:room]
    found = children(shape, room, levels)
    assert sorted(child for some in found for child in some) == kept
    assert all(shape[child] == parent for parent, some in enumerate(found) for child in some)


def test_acceptance_by_rank_is_learnt() -> None:
    """The second child is right in four of ten steps, the first in one."""
    ranks, draw, looks = Ranks(), random.Random(0), 0
    tree = DraftTree((9, 1, 2, 3, 1), (-1, 0, 0, 0, 2))
    for _ in range(4000):
        luck = draw.random()
        looks += ranks.observe(tree, (1 if luck < 0.1 else 2 if luck < 0.5 else 4, 5))
    first, second, third, *_ = ranks.acceptance
    # the child of the second child is a first child too, and never right
    assert first == pytest.approx(0.1 / 1.4, abs=0.02)
    assert second == pytest.approx(0.4, abs=0.03)
    assert third < 0.01
    assert 3 <= looks <= 10


def test_learnt_acceptance_by_rank_fades_and_has_the_tree_reconsidered() -> None:
    """First the first child is always right, then the second."""
    ranks, tree = Ranks(), DraftTree((9, 1, 2), (-1, 0, 0))
    looks = [ranks.observe(tree, (1,)) for _ in range(20_000)]
    assert ranks.acceptance[0] > 0.99
    assert max(pauses(looks)) <= 2048
    before = optimal_tree(ranks.acceptance, 8, 4)
    looks = [ranks.observe(tree, (2,)) for _ in range(10_000)]
    assert ranks.acceptance[1] > 0.98
    assert ranks.acceptance[0] < 0.02
    assert sum(looks) >= 4
    assert before != optimal_tree(ranks.acceptance, 8, 4)


def pauses(looks: list[bool]) -> list[int]:
    """The numbers of trees observed between looks."""
    places = [0, *[place for place, due in enumerate(looks) if due]]
    return [later - earlier for earlier, later in pairwise(places)]


# Leviathan's formulas


@pytest.mark.parametrize(
    ("acceptance", "length", "tokens", "more"),
    [
        (0.6, 2, 1.96, 1.53), (0.7, 3, 2.53, 1.58), (0.8, 2, 2.44, 1.23), (0.8, 5, 3.69, 1.63), (0.9, 2, 2.71, 1.11),
        (0.9, 10, 6.86, 1.60),
    ],
)  # fmt: skip
def test_formulas_give_the_published_table(acceptance: float, length: int, tokens: float, more: float) -> None:
    """Tokens, and operations if drafting costs nothing."""
    assert improvement(acceptance, length, 0.0) == pytest.approx(tokens, abs=5e-3)
    assert operations(acceptance, length, 0.0) == pytest.approx(more, abs=6e-3)


@still
@given(chances, st.integers(0, 20))
def test_what_is_expected_of_a_chain_is_the_formula(acceptance: float, length: int) -> None:
    assert expected_tokens(tree_of(caterpillar(length), (acceptance,))) == pytest.approx(of_chain(acceptance, length), abs=1e-6)


@still
@given(st.floats(0.01, 0.99), st.floats(0.0, 2.0))
def test_drafting_pays_where_acceptance_exceeds_cost(acceptance: float, cost: float) -> None:
    best = max(improvement(acceptance, length, cost) for length in range(1, 65))
    if acceptance <= cost:
        assert best <= 1.0 + 1e-12
    else:
        assert best >= (1.0 + acceptance) / (1.0 + cost) - 1e-12


@still
@given(st.floats(0.0, 0.99), st.floats(0.01, 1.0))
def test_the_best_length_is_the_only_peak(acceptance: float, cost: float) -> None:
    values = [improvement(acceptance, length, cost) for length in range(65)]
    best = optimal_length(acceptance, cost)
    assert all(a <= b + 1e-12 for a, b in pairwise(values[: best + 1]))
    assert all(a >= b - 1e-12 for a, b in pairwise(values[best:]))


@still
@given(chances, chances, st.floats(0.0, 1.0), st.integers(0, 12))
def test_acceptance_that_differs_by_context_is_worth_more_than_its_mean(a: float, b: float, share: float, length: int) -> None:
    mixed = share * of_chain(a, length) + (1 - share) * of_chain(b, length)
    assert mixed >= of_chain(share * a + (1 - share) * b, length) - 1e-9
    assert 0.5 * (of_chain(0.4, 5) + of_chain(0.9, 5)) == pytest.approx(3.17, abs=5e-3)
    assert of_chain(0.65, 5) == pytest.approx(2.64, abs=5e-3)
