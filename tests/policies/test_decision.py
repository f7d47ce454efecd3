"""Decisions stand for a while: how long, and what ends them."""

from __future__ import annotations

import pytest

from paceline.decision import ALONE, Decision, Decisions, Found, found_in
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import DraftTree

NOBODY, FIRST = Decision(), Decision(4, (0,))
SOMETHING = found_in([DraftTree.root(1), DraftTree.chain(1, [2], "a")])


def batch(*keys: int) -> list[Sequence]:
    return [Sequence(key, (1, 2, 3), SamplingParams(), 0) for key in keys]


def taken(decision: Decision, sequences: list[Sequence], found: Found = ALONE, reads: bool = False) -> Decisions:
    decisions = Decisions()
    decisions.take(decision, sequences, found, reads)
    return decisions


def stood(decisions: Decisions, sequences: list[Sequence], found: Found = ALONE) -> int:
    """Steps for which what is decided stands, if nothing changes."""
    steps = 0
    while steps < 100 and decisions.standing(sequences, found, reads=False):
        steps += 1
    return steps


def chain(*chances: float) -> DraftTree:
    return DraftTree.chain(1, range(2, 2 + len(chances)), "a", confidences=chances)


def test_that_nobody_asks_stands_longer_each_time() -> None:
    decisions, lengths = Decisions(), []
    for _ in range(30):
        decisions.take(NOBODY, batch(1), ALONE, reads=False)
        lengths.append(stood(decisions, batch(1)))
    assert lengths[:3] == [1, 2, 4]
    assert lengths[-1] == lengths[-2] == 16


def test_a_draft_is_granted_again_for_a_few_steps_and_then_thought_over() -> None:
    decisions = taken(FIRST, batch(1, 2))
    assert stood(decisions, batch(1, 2)) == 7
    decisions.take(NOBODY, batch(1, 2), ALONE, reads=False)
    assert stood(decisions, batch(1, 2)) == 1, "and rests begin anew"


@pytest.mark.parametrize("now", [(1, 3), (1,), (1, 2, 3), (2, 1)])
def test_a_draft_is_granted_to_those_for_whom_it_was_decided(now: tuple[int, ...]) -> None:
    assert taken(FIRST, batch(1, 2)).standing(batch(*now), ALONE, reads=False) is None


def test_that_nobody_asks_stands_for_a_batch_of_about_that_size() -> None:
    for size, stands in [(16, True), (20, True), (13, True), (12, False), (4, False)]:
        decision = taken(NOBODY, batch(*range(16))).standing(batch(*range(100, 100 + size)), ALONE, reads=False)
        assert (decision is not None) is stands


def test_what_is_found_is_told_by_the_tokens_expected_of_it() -> None:
    assert found_in([DraftTree.root(1)]) == found_in([DraftTree.root(1)] * 2) == ALONE
    assert found_in([chain(0.9, 0.9)]) == found_in([chain(0.9, 0.8, 0.1, 0.1)]) != ALONE
    kinds = [found_in([chain(*[0.99] * count)]) for count in (1, 2, 4, 8, 16)]
    assert len(set(kinds)) == len(kinds)
    assert found_in([chain(0.1), chain(0.9, 0.9)]) == SOMETHING != ALONE, "in a batch it is another thing each time"


def test_each_thing_found_has_a_decision_of_its_own() -> None:
    short, long = found_in([chain(0.5)]), found_in([chain(*[0.99] * 8)])
    decisions = taken(FIRST, batch(1))
    decisions.take(Decision(2, (0,)), batch(1), short, reads=False)
    decisions.take(NOBODY, batch(1), long, reads=False)
    told = [decisions.standing(batch(1), found, reads=False) for found in (ALONE, short, long)]
    assert [decision and decision.depth for decision in told] == [4, 2, 0]
    assert taken(FIRST, batch(1)).standing(batch(1), short, reads=False) is None, "the deep draft may not be wanted beside it"


def test_beside_what_is_found_in_a_batch_a_draft_is_thought_over_each_time() -> None:
    assert taken(FIRST, batch(1, 2), SOMETHING).standing(batch(1, 2), SOMETHING, reads=False) is None
    assert taken(NOBODY, batch(1, 2), SOMETHING).standing(batch(1, 2), SOMETHING, reads=False) == NOBODY


def test_that_nobody_asks_beside_look_ups_stands_while_they_find_something() -> None:
    found = found_in([chain(0.9, 0.9)])
    assert stood(taken(NOBODY, batch(1), found), batch(1), found) == 4
    decisions = taken(NOBODY, batch(1), found)
    assert decisions.standing(batch(1), ALONE, reads=False) is None, "where nothing is found it may be worth it"
    decisions.take(NOBODY, batch(1), ALONE, reads=False)
    assert decisions.standing(batch(1), found_in([chain(0.1)]), reads=False) == NOBODY, "but not the other way round"


@pytest.mark.parametrize("decision", [NOBODY, FIRST])
def test_what_is_decided_beside_a_prompt_stands_for_that_step(decision: Decision) -> None:
    assert taken(decision, batch(1), reads=True).standing(batch(1), ALONE, reads=False) is None
    assert taken(FIRST, batch(1)).standing(batch(1), ALONE, reads=True) is None
