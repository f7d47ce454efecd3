"""DepthAcceptance: how often each level granted to a costly drafter is drafted and accepted."""

from __future__ import annotations

from random import Random

import pytest

from paceline.learning.depth_acceptance import DepthAcceptance, DraftContext
from paceline.tree import DraftTree

ALONE = DraftContext.ALONE


def chain(tokens: list[int]) -> DraftTree:
    return DraftTree.chain(9, tokens, "a")


def test_depths_never_granted_are_estimated_from_shallower_levels() -> None:
    learnt = DepthAcceptance()
    assert learnt.brought("a", 4, ALONE) == learnt.right("a", 4, ALONE) == [learnt.right("a", 1, ALONE)[0]] * 4
    assert learnt.drafted("a", 3, ALONE) == pytest.approx([1.0, 0.6, 0.36])
    for _ in range(100):
        learnt.observe("a", 1, chain([1]), [5], ALONE)
    assert learnt.brought("a", 3, ALONE)[2] < 0.05
    assert learnt.drafted("a", 3, ALONE)[:2] == pytest.approx([1.0, 0.0], abs=0.05)


def test_levels_that_were_not_drafted_bring_nothing_but_were_not_wrong() -> None:
    """Half of the drafts reach a second level, which is right three times in four."""
    learnt, stream = DepthAcceptance(), Random(3)
    for _ in range(2000):
        if stream.random() < 0.5:
            learnt.observe("a", 2, chain([1, 2]), [1, 2 if stream.random() < 0.75 else 5], ALONE)
        else:
            learnt.observe("a", 2, chain([1]), [1, 2], ALONE)
    assert learnt.drafted("a", 2, ALONE) == pytest.approx([1.0, 0.5], abs=0.1)
    assert learnt.right("a", 2, ALONE) == pytest.approx([1.0, 0.75], abs=0.12)
    assert learnt.brought("a", 2, ALONE) == pytest.approx([1.0, 0.375], abs=0.12)


def test_nothing_is_learnt_of_levels_whose_parent_was_wrong_or_whose_text_has_ended() -> None:
    learnt = DepthAcceptance()
    before = learnt.right("a", 4, ALONE)
    for _ in range(50):
        learnt.observe("a", 4, chain([1, 2, 3, 4]), [5], ALONE)
        learnt.observe("b", 4, chain([1, 2, 3, 4]), [1], ALONE)
    assert learnt.right("a", 4, ALONE)[1:] == before[1:]
    assert learnt.right("b", 4, ALONE)[1:] == before[1:]
    assert learnt.right("a", 1, ALONE)[0] < 0.1 < 0.9 < learnt.right("b", 1, ALONE)[0]


def test_a_level_of_a_tree_is_right_if_any_of_its_nodes_is() -> None:
    learnt = DepthAcceptance()
    tree = DraftTree((9, 1, 2, 3), (-1, 0, 0, 1), sources=("", "a", "a", "a"))
    for _ in range(100):
        learnt.observe("a", 2, tree, [2, 3], ALONE)
    assert learnt.right("a", 1, ALONE)[0] > 0.95
    assert learnt.brought("a", 2, ALONE)[1] < 0.05


def test_acceptance_is_learnt_apart_at_an_answers_beginning_and_beside_lookup_finds() -> None:
    learnt = DepthAcceptance()
    for _ in range(100):
        learnt.observe("a", 1, chain([1]), [1], DraftContext.BEGINNING)
    assert learnt.right("a", 1, DraftContext.ALONE) == learnt.right("a", 1, DraftContext.BEGINNING), (
        "what is not known is like what is"
    )
    for _ in range(100):
        learnt.observe("a", 1, chain([1]), [5], DraftContext.ALONE)
    assert learnt.right("a", 1, DraftContext.BEGINNING)[0] > 0.9 > 0.1 > learnt.right("a", 1, DraftContext.ALONE)[0]
    assert [DraftContext.of(0, True), DraftContext.of(3, True), DraftContext.of(3, False)] == [
        DraftContext.BEGINNING,
        DraftContext.BESIDE,
        DraftContext.ALONE,
    ]
