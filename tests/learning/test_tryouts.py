"""Tryouts: how often a drafter is tried that is not thought to be worth it."""

from __future__ import annotations

from paceline.learning.tryouts import Tryouts

COST_S = 0.5


def asked(tryouts: Tryouts, part: str = "model", cost_s: float = COST_S) -> bool:
    """Whether a drafter may be tried for the only request."""
    return tryouts.begin(part, {0: cost_s}, cost_s) == 0


def tried(tryouts: Tryouts, steps: int, gain_s: float) -> list[bool]:
    """Whether a drafter was tried in each of so many steps of a second; a trial brings `gain_s`."""
    found = []
    for _ in range(steps):
        began = tryouts.may_be_due("model") and asked(tryouts)
        found.append(began)
        if began:
            tryouts.end(gain_s)
        tryouts.begun = None
        tryouts.all_s += 1.0
    return found


def test_what_trials_lose_is_a_small_share_of_all_time() -> None:
    found = tried(Tryouts(), 10_000, 0.0)
    assert 0.0045 <= sum(found) * COST_S / 10_000 <= 0.005


def test_trials_that_lose_half_come_twice_as_often() -> None:
    assert 1.9 < sum(tried(Tryouts(), 10_000, COST_S / 2)) / sum(tried(Tryouts(), 10_000, 0.0)) < 2.1


def test_trials_that_pay_for_themselves_follow_one_another() -> None:
    found = tried(Tryouts(), 500, COST_S)
    assert all(found[found.index(True) :])


def test_what_a_good_time_brought_pays_for_few_trials_in_a_bad_one() -> None:
    tryouts = Tryouts()
    assert any(tried(tryouts, 500, 10 * COST_S))
    assert sum(tried(tryouts, 50, 0.0)) <= 4


def test_the_dearer_of_two_drafters_has_its_turn_too() -> None:
    tryouts, turns = Tryouts(), {"small": 0, "large": 0}
    for _ in range(20_000):
        for part, cost_s in (("small", 0.5), ("large", 5.0)):
            if tryouts.may_be_due(part) and asked(tryouts, part, cost_s):
                turns[part] += 1
                tryouts.end(0.0)
        tryouts.begun = None
        tryouts.all_s += 1.0
    assert 95 <= turns["small"] <= 100
    assert 8 <= turns["large"] <= 10


def test_a_step_has_one_trial_at_most() -> None:
    tryouts = Tryouts()
    tryouts.all_s = 1e6
    assert tryouts.may_be_due("model")
    assert asked(tryouts)
    assert not tryouts.may_be_due("another")


def test_no_trial_in_a_step_brings_nothing() -> None:
    tryouts = Tryouts()
    tryouts.end(1e9)
    assert not asked(tryouts)


def test_a_request_of_whom_much_is_to_be_read_holds_up_no_other() -> None:
    """Beside another it is passed over, and it is soon asked again whether whoever came meanwhile may be tried for."""
    tryouts, turns = Tryouts(), {0: 0, 1: 0}
    for step in range(3_000):
        requests = {0: 1000 * COST_S} if step < 20 else {0: 1000 * COST_S, 1: COST_S}
        if tryouts.may_be_due("model"):
            key = tryouts.begin("model", requests, COST_S)
            if key is not None:
                turns[key] += 1
                tryouts.end(0.0)
        tryouts.begun = None
        tryouts.all_s += 1.0
    assert turns[0] == 0
    assert 25 <= turns[1] <= 30
