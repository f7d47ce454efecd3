"""Acceptance: probabilities learnt from the text, by drafter, depth, confidence and request."""

from __future__ import annotations

from random import Random

import pytest

from paceline.learning.acceptance import Acceptance, expected_tokens
from paceline.stopping import class_of
from paceline.tree import DraftTree


def chain(tokens: list[int], confidence: float = 0.5, source: str = "a") -> DraftTree:
    return DraftTree.chain(9, tokens, source, confidences=[confidence] * len(tokens))


def test_a_drafters_confidences_are_kept_until_its_acceptance_is_known() -> None:
    rated = Acceptance().rated(1, chain([1, 2], 0.8))
    assert rated.confidences == (1.0, 0.8, 0.8)
    assert rated.tokens == (9, 1, 2)


def test_rates_are_learnt_by_confidence_and_depth() -> None:
    learnt, stream = Acceptance(), Random(3)
    for key in range(3000):
        sure = stream.random() < 0.5
        first, second = stream.random() < (0.9 if sure else 0.2), stream.random() < 0.4
        emitted = [1 if first else 5] + ([2 if second else 5] if first else [])
        learnt.observe(key, chain([1, 2], 0.95 if sure else 0.15), emitted)
    sure, unsure = (learnt.rated(-1, chain([1, 2], c)).confidences for c in (0.95, 0.15))
    assert sure[1:] == pytest.approx((0.9, 0.4), abs=0.07)
    assert unsure[1:] == pytest.approx((0.2, 0.4), abs=0.09)


def test_a_request_that_differs_is_told_apart_and_forgotten_when_it_ends() -> None:
    learnt = Acceptance()
    for key in range(200):
        learnt.observe(key, chain([1]), [1 if key % 2 else 5])
    for _ in range(10):
        learnt.observe(777, chain([1]), [5])
    bad, other = (learnt.rated(key, chain([1])).confidences[1] for key in (777, 778))
    assert bad < 0.5 * other
    assert learnt.odds(777, "a") < 0.5 * learnt.odds(778, "a")
    learnt.release(777)
    assert learnt.rated(777, chain([1])).confidences[1] == pytest.approx(learnt.rated(778, chain([1])).confidences[1])


def test_failures_of_a_request_lower_doubtful_nodes_and_not_sure_ones() -> None:
    """As with lookups: the first token is often wrong, but behind several right ones the next is right too."""
    learnt = Acceptance()
    for key in range(400):
        learnt.observe(key, chain([1, 2, 3, 4]), [1, 2, 3, 4] if key % 2 else [5])
    for _ in range(6):
        learnt.observe(777, chain([1]), [5])
    first, *deep = learnt.rated(777, chain([1, 2, 3, 4])).confidences[1:]
    assert first < 0.3
    assert min(deep) > 0.9


def test_nodes_are_judged_as_far_as_the_text_tells() -> None:
    learnt = Acceptance()
    tree = DraftTree((9, 1, 2, 3), (-1, 0, 0, 1), sources=("", "a", "a", "a"), confidences=(1.0, 0.55, 0.25, 0.55))
    for _ in range(50):
        # the second child is right: nothing is known about nodes below the first
        learnt.observe(1, tree, [2])
    learnt.release(1)
    first, second, below = learnt.rated(2, tree).confidences[1:]
    assert first < 0.1
    assert second > 0.9
    assert below == 0.55


def test_a_draft_is_judged_further_as_later_steps_emit_its_tokens() -> None:
    """The target verifies no node, so each step emits one token; acceptance of deep nodes is learnt from later tokens."""
    learnt, stream = Acceptance(), Random(5)
    for key in range(600):
        text = [1, 2, 3 if stream.random() < 0.3 else 5, 4]
        learnt.observe(key, chain([1, 2, 3, 4]), text[:1])
        for token in text[1:]:
            learnt.go_on(key, [token])
        learnt.release(key)
    first, second, third, fourth = learnt.rated(-1, chain([1, 2, 3, 4])).confidences[1:]
    assert min(first, second) > 0.98
    assert third == pytest.approx(0.3, abs=0.06)
    # the fourth token, given that the third was right
    assert fourth > 0.95


def test_a_tree_is_judged_on_along_the_branch_that_came_true() -> None:
    learnt = Acceptance()
    tree = DraftTree((9, 1, 2, 3, 4), (-1, 0, 0, 1, 2), sources=("", *"aaaa"), confidences=(1.0, 0.55, 0.25, 0.55, 0.75))
    for _ in range(50):
        learnt.observe(1, tree, [2])
        learnt.go_on(1, [4, 7])
        # that branch has ended, so this token is not used
        learnt.go_on(1, [3])
    learnt.release(1)
    first, second, below_first, below_second = learnt.rated(2, tree).confidences[1:]
    assert first < 0.1
    assert below_first == 0.55
    assert min(second, below_second) > 0.9


def test_only_one_of_overlapping_drafts_is_judged_further_and_none_of_an_ended_request() -> None:
    learnt, alone = Acceptance(), Acceptance()
    for known in (learnt, alone):
        known.observe(1, chain([1, 2, 3], 0.95), [1])
    learnt.observe(1, chain([2, 8], 0.35), [2])
    for known in (learnt, alone):
        known.go_on(1, [2, 3])
    # the second level of the other draft was wrong, but was not observed
    assert learnt.rated(2, chain([2, 8], 0.35)).confidences[2] == 0.35
    assert learnt.rated(2, chain([1, 2, 3], 0.95)).confidences == alone.rated(2, chain([1, 2, 3], 0.95)).confidences
    alone.observe(1, chain([1, 2], 0.15), [1])
    alone.release(1)
    alone.go_on(1, [5])
    assert alone.rated(2, chain([1, 2], 0.15)).confidences[2] == 0.15


def test_drafters_do_not_answer_for_each_other() -> None:
    learnt = Acceptance()
    for _ in range(50):
        learnt.observe(1, chain([1], source="a"), [5])
    assert learnt.rated(1, chain([1], source="b")).confidences[1] == 0.5


def test_the_table_of_chances_is_what_drafts_are_rated_by() -> None:
    learnt, stream = Acceptance(), Random(4)
    learnt.observe(1, chain([1, 2], 0.35), [1, 5])
    table = learnt.chances("a")
    for key in range(200):
        learnt.observe(key, chain([1, 2, 3], stream.random()), [1 if stream.random() < 0.7 else 5, 2, 5])
    for confidence in (0.05, 0.35, 0.62, 0.97, 1.0):
        rated = learnt.rated(-1, chain([1, 2, 3], confidence)).confidences[1:]
        assert [table[level, class_of(confidence)] for level in range(3)] == pytest.approx(rated)
    assert learnt.chances("a") is table


@pytest.mark.parametrize(("chance", "depth"), [(0.6, 2), (0.7, 3), (0.8, 5), (0.9, 10)])
def test_the_expected_tokens_of_a_chain_are_those_of_leviathan(chance: float, depth: int) -> None:
    expected = (1 - chance ** (depth + 1)) / (1 - chance)
    assert expected_tokens(chain([1] * depth, chance)) == pytest.approx(expected)


def test_the_expected_tokens_of_a_tree_are_those_of_a_simulation() -> None:
    tree = DraftTree((9, 1, 2, 3, 1), (-1, 0, 0, 1, 2), confidences=(1.0, 0.6, 0.3, 0.5, 0.9))
    stream, emitted, runs = Random(5), 0, 40_000
    for _ in range(runs):
        node, emitted = 0, emitted + 1
        while tree.siblings[node]:
            draw, taken = stream.random(), None
            for child in tree.siblings[node]:
                draw -= tree.confidences[child]
                if draw < 0:
                    taken = child
                    break
            if taken is None:
                break
            node, emitted = taken, emitted + 1
    assert emitted / runs == pytest.approx(expected_tokens(tree), abs=0.02)
    window = DraftTree((9, 1, 2), (-1, 0, 0), confidences=(1.0, 0.6, 0.6), probes=1)
    assert expected_tokens(window) == pytest.approx(1.6)
