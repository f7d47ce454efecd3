"""LearningInterval: which steps with drafts are learnt from."""

from __future__ import annotations

import pytest

from paceline.learning.learning_interval import LearningInterval


def learnt_from(learning_interval: LearningInterval, share: float, steps: int) -> list[bool]:
    """Whether each of `steps` steps was learnt from, if learning takes this share of a step."""
    due = []
    for _ in range(steps):
        learning_interval.begin()
        due.append(learning_interval.due)
        if learning_interval.due:
            learning_interval.learnt(share, 1.0)
    return due


@pytest.mark.parametrize(("share", "apart"), [(0.001, 1), (0.007, 1), (0.01, 2), (0.015, 3), (0.02, 4), (0.3, 4)])
def test_the_costlier_learning_is_the_fewer_steps_are_learnt_from(share: float, apart: int) -> None:
    learning_interval = LearningInterval()
    due = learnt_from(learning_interval, share, 1000)
    assert all(due[:64]), "the first steps are all learnt from"
    assert sum(due[200:]) == pytest.approx(800 / apart, rel=0.08)
    assert learning_interval.mean_steps == apart


def test_lessons_do_not_come_at_equal_distances() -> None:
    """In a text that repeats itself with a period, every phase of the period is seen about equally often."""
    due = learnt_from(LearningInterval(), 0.1, 4000)
    for around in range(2, 13):
        seen = [sum(due[400 + at :: around]) for at in range(around)]
        assert min(seen) > 0.5 * max(seen)


def test_the_steps_of_all_intervals_add_up_to_the_steps_taken() -> None:
    learning_interval, counted = LearningInterval(), 0
    for _ in range(1000):
        learning_interval.begin()
        if learning_interval.due:
            counted += learning_interval.steps
            learning_interval.learnt(0.1, 1.0)
    assert 1000 - 5 < counted <= 1000


def test_of_a_rest_its_last_step_is_learnt_from_and_so_is_the_one_behind_it() -> None:
    """Otherwise drafts that are considered once in eight steps, the others being pauses, would never be learnt from."""
    learning_interval = LearningInterval()
    learnt_from(learning_interval, 0.1, 1000)
    while not learning_interval.due:
        learning_interval.begin()
    seen = []
    for rested, due in ((True, False), (True, False), (True, True), (False, False), (False, False)):
        learning_interval.begin()
        if rested:
            assert learning_interval.skip(due) is due
        seen.append((learning_interval.due, learning_interval.steps))
    assert seen == [(False, 1), (False, 2), (True, 3), (True, 1), (False, 1)]


def test_one_step_in_four_of_a_long_pause_is_learnt_from() -> None:
    """The cost of forwards may change during the pause, as other programs start or stop."""
    learning_interval, due = LearningInterval(), []
    for _ in range(80):
        learning_interval.begin()
        due.append(learning_interval.skip(learning_interval.overdue))
    assert sum(due) == pytest.approx(80 / 4, abs=1)


def test_a_learning_step_due_behind_a_pause_stays_due_over_further_pauses() -> None:
    learning_interval = LearningInterval()
    learnt_from(learning_interval, 0.1, 1000)
    for due in (True, False):
        learning_interval.begin()
        learning_interval.skip(due)
    assert learning_interval.begin()


def test_the_mean_step_time_counts_a_learning_step_once_per_interval() -> None:
    learning_interval = LearningInterval()
    learnt_from(learning_interval, 0.1, 1000)
    while not learning_interval.due:
        learning_interval.begin()
    learning_interval.begin()
    while not learning_interval.due:
        learning_interval.passed(1.0)
        learning_interval.begin()
    assert learning_interval.mean(4.0) == (learning_interval.steps + 3.0) / learning_interval.steps


def test_one_lesson_that_was_disturbed_makes_them_hardly_rarer() -> None:
    learning_interval = LearningInterval()
    learnt_from(learning_interval, 0.001, 100)
    learning_interval.learnt(50.0, 1.0)
    assert sum(learnt_from(learning_interval, 0.001, 200)) > 100
