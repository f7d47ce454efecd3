"""Exploration: how often a drafter that is not expected to pay is tried."""

from __future__ import annotations

from paceline.learning.exploration import Exploration

COST_S = 0.5


def asked(exploration: Exploration, part: str = "model", cost_s: float = COST_S) -> bool:
    """Whether a drafter may be tried for the only request."""
    return exploration.begin(part, {0: cost_s}, cost_s) == 0


def tried(exploration: Exploration, steps: int, gain_s: float) -> list[bool]:
    """Whether a drafter was tried in each of `steps` steps of one second; a trial gains `gain_s`."""
    found = []
    for _ in range(steps):
        began = exploration.may_be_due("model") and asked(exploration)
        found.append(began)
        if began:
            exploration.end(gain_s)
        exploration.begun = None
        exploration.all_s += 1.0
    return found


def test_what_trials_lose_is_a_small_share_of_all_time() -> None:
    found = tried(Exploration(), 10_000, 0.0)
    assert 0.0045 <= sum(found) * COST_S / 10_000 <= 0.005


def test_trials_that_lose_half_come_twice_as_often() -> None:
    assert 1.9 < sum(tried(Exploration(), 10_000, COST_S / 2)) / sum(tried(Exploration(), 10_000, 0.0)) < 2.1


def test_trials_that_pay_for_themselves_follow_one_another() -> None:
    found = tried(Exploration(), 500, COST_S)
    assert all(found[found.index(True) :])


def test_gains_of_winning_trials_pay_for_few_losing_trials_later() -> None:
    exploration = Exploration()
    assert any(tried(exploration, 500, 10 * COST_S))
    assert sum(tried(exploration, 50, 0.0)) <= 4


def test_the_dearer_of_two_drafters_has_its_turn_too() -> None:
    exploration, turns = Exploration(), {"small": 0, "large": 0}
    for _ in range(20_000):
        for part, cost_s in (("small", 0.5), ("large", 5.0)):
            if exploration.may_be_due(part) and asked(exploration, part, cost_s):
                turns[part] += 1
                exploration.end(0.0)
        exploration.begun = None
        exploration.all_s += 1.0
    assert 95 <= turns["small"] <= 100
    assert 8 <= turns["large"] <= 10


def test_a_step_has_one_trial_at_most() -> None:
    exploration = Exploration()
    exploration.all_s = 1e6
    assert exploration.may_be_due("model")
    assert asked(exploration)
    assert not exploration.may_be_due("another")


def test_ending_a_step_without_a_trial_earns_no_credit() -> None:
    exploration = Exploration()
    exploration.end(1e9)
    assert not asked(exploration)


def test_a_request_with_much_unread_text_does_not_block_trials_for_others() -> None:
    """In the presence of another request it is skipped, and trials for newcomers are soon considered again."""
    exploration, turns = Exploration(), {0: 0, 1: 0}
    for step in range(3_000):
        requests = {0: 1000 * COST_S} if step < 20 else {0: 1000 * COST_S, 1: COST_S}
        if exploration.may_be_due("model"):
            key = exploration.begin("model", requests, COST_S)
            if key is not None:
                turns[key] += 1
                exploration.end(0.0)
        exploration.begun = None
        exploration.all_s += 1.0
    assert turns[0] == 0
    assert 25 <= turns[1] <= 30
