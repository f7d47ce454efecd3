"""Tryouts: how often a drafter is tried that is not thought to be worth it."""

from __future__ import annotations

from paceline.learning.tryouts import Tryouts

COST_S = 0.5


def tried(tryouts: Tryouts, steps: int, gain_s: float) -> list[bool]:
    """Whether a drafter was tried in each of so many steps of a second; a trial brings `gain_s`."""
    found = []
    for _ in range(steps):
        began = tryouts.may_be_due("model") and tryouts.begin("model", 0, COST_S)
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
            if tryouts.may_be_due(part) and tryouts.begin(part, 0, cost_s):
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
    assert tryouts.begin("model", 0, COST_S)
    assert not tryouts.may_be_due("another")


def test_no_trial_in_a_step_brings_nothing() -> None:
    tryouts = Tryouts()
    tryouts.end(1e9)
    assert not tryouts.begin("model", 0, COST_S)
