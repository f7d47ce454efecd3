"""Stopping: where a draft ends before its budget does."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from paceline.budget import Budget
from paceline.stopping import CLASSES, DEEPEST, LIKELIEST, Stopping, class_of, shifted

CHANCES = np.linspace(0.1, 0.9, DEEPEST * CLASSES, dtype=np.float32).reshape(DEEPEST, CLASSES)


@pytest.mark.parametrize(
    ("confidence", "expected"), [(-inf, 0), (-0.1, 0), (0.0, 0), (0.099, 0), (0.35, 3), (0.999, 9), (1.0, 9), (7.0, 9), (nan, 9)]
)
def test_every_confidence_has_a_class_also_outside_0_to_1(confidence: float, expected: int) -> None:
    assert class_of(confidence) == expected


@pytest.mark.parametrize(
    ("chance", "odds", "expected"), [(0.5, 0.5, 1 / 3), (0.9, 0.5, 9 / 11), (0.99, 4.0, 396 / 397), (0.3, 1.0, 0.3)]
)
def test_odds_shift_a_doubtful_chance_more_than_a_sure_one(chance: float, odds: float, expected: float) -> None:
    assert shifted(chance, odds) == pytest.approx(expected)
    assert [shifted(end, odds) for end in (0.0, 1.0)] == [0.0, 1.0]


def test_a_path_is_as_likely_as_all_its_tokens_together() -> None:
    rule = Stopping(CHANCES, 0.5, [])
    first = rule.reach(1.0, 1, 0.35)
    assert first == pytest.approx(shifted(CHANCES[0, 3], 0.5))
    assert rule.reach(first, 2, 0.99) == pytest.approx(first * shifted(CHANCES[1, 9], 0.5))
    assert rule.reach(1.0, 50, 0.0) == pytest.approx(shifted(CHANCES[-1, 0], 0.5)), "all deeper levels are judged alike"
    assert Stopping(CHANCES, 1e6, []).reach(1.0, 1, 0.5) == LIKELIEST


def test_a_draft_goes_on_while_its_path_is_likely_enough_for_the_level() -> None:
    rule = Stopping(CHANCES, 1.0, [0.2, 0.5])
    assert rule.goes_on(1, 0.2)
    assert not rule.goes_on(1, 0.19)
    assert not rule.goes_on(2, 0.49)
    assert rule.goes_on(3, 0.0), "behind the last least chance nothing but the budget ends it"


def test_a_narrowed_budget_keeps_its_stopping_rule() -> None:
    rule = Stopping(CHANCES, 1.0, [0.5])
    assert Budget(8, 8, stopping=rule).within(Budget(3, 9)) == Budget(3, 8, stopping=rule)
    assert Budget(3, 3).within(Budget(8, 8, stopping=rule)).stopping is rule
    assert Budget(3, 3, stopping=rule).within(Budget(8, 8)).stopping is rule
