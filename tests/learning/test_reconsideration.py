"""Reconsideration: in which steps drafts are considered while no drafter is asked."""

from __future__ import annotations

from paceline.learning.reconsideration import Reconsideration


def thinks(reconsideration: Reconsideration, newest: int = 0, asked: bool = False, requests: int = 1) -> bool:
    """Whether drafts are considered in one more step; if so, and if `asked`, a drafter is asked."""
    reconsideration.begin()
    skips = reconsideration.skips(newest, requests)
    reconsideration.saw(asked and not skips)
    return not skips


def test_while_somebody_is_asked_drafts_are_thought_about_in_every_step() -> None:
    reconsideration = Reconsideration()
    assert all(thinks(reconsideration, asked=True) for _ in range(20))


def test_drafts_are_considered_in_one_step_of_eight_once_no_drafter_is_asked() -> None:
    reconsideration = Reconsideration()
    assert [thinks(reconsideration) for _ in range(20)] == [True] * 3 + [step % 8 == 0 for step in range(1, 18)]
    while not thinks(reconsideration, asked=True):
        pass
    assert thinks(reconsideration), "and in every step once a drafter was asked"


def test_drafts_are_considered_at_once_for_a_new_request() -> None:
    reconsideration = Reconsideration()
    while thinks(reconsideration):
        pass
    assert [thinks(reconsideration, newest=1), thinks(reconsideration, newest=1)] == [True, False]


def test_in_a_crowd_one_new_request_waits_for_more_of_them_or_for_its_turn() -> None:
    """With short answers a request begins in nearly every step."""
    reconsideration = Reconsideration()
    while thinks(reconsideration, requests=16):
        pass
    thought = [thinks(reconsideration, newest, requests=16) for newest in range(1, 21)]
    assert [step for step, one in enumerate(thought, 1) if one] == [5, 10, 15, 20]
    assert [thinks(reconsideration, 21, requests=16) for _ in range(16)] == [False] * 7 + [True] + [False] * 7 + [True]


def test_a_skipped_step_is_observed_before_drafts_are_considered_again() -> None:
    reconsideration = Reconsideration()
    while thinks(reconsideration):
        pass
    told = [(reconsideration.observed, reconsideration.last)]
    while not thinks(reconsideration):
        told.append((reconsideration.observed, reconsideration.last))
    assert told == [(False, False), (False, False), (True, False), *[(False, False)] * 3, (True, True)]


def test_a_newest_request_with_a_lower_key_counts_as_a_new_one() -> None:
    reconsideration = Reconsideration()
    while thinks(reconsideration, newest=7):
        pass
    assert thinks(reconsideration, newest=3)


def test_a_step_that_never_asked_for_a_decision_does_not_count_as_skipped() -> None:
    reconsideration = Reconsideration()
    while thinks(reconsideration):
        pass
    reconsideration.begin()
    assert not reconsideration.skipping
