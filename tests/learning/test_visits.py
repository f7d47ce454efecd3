"""Visits: what costly drafters have read, and over how many drafts to come the rest pays."""

from __future__ import annotations

import pytest

from paceline.learning.visits import Visits
from paceline.params import SamplingParams
from paceline.sequence import Sequence


def sequence(key: int, prompt: int = 100, answer: int = 0) -> Sequence:
    made = Sequence(key, (1,) * prompt, SamplingParams(max_tokens=1000), 0)
    made.tokens += [2] * answer
    return made


def test_a_drafter_lacks_what_was_written_since_it_was_asked() -> None:
    visits, text = Visits(), sequence(0)
    assert (visits.lacking("model", text), visits.last("model", text)) == (100, -1)
    visits.visit("model", text, 7, tried=False)
    text.tokens += [5, 6, 7]
    assert (visits.lacking("model", text), visits.last("model", text)) == (3, 7)
    assert visits.lacking("other", text) == 103
    visits.release(0)
    assert visits.lacking("model", text) == 103


def test_reading_pays_over_the_drafts_that_are_left() -> None:
    visits, text = Visits(), sequence(0)
    assert visits.drafts_left("model", text) == 32.0
    for step in range(100):
        visits.visit("model", text, step, tried=False)
        text.tokens += [5] * 8
    assert visits.drafts_left("model", sequence(1)) == pytest.approx(8.0, rel=0.01)
    assert visits.drafts_left("model", sequence(1, answer=63)) == 1.0, "a draft that is made is one"
    for _ in range(100):
        visits.ended(sequence(2, answer=400))
    assert visits.drafts_left("model", sequence(1)) == pytest.approx(50.0, rel=0.01)
    assert visits.drafts_left("model", sequence(1, answer=600)) == pytest.approx(50.0, rel=0.01), "no more than it may have"
    visits._length = 8.0
    assert visits.drafts_left("model", sequence(1, answer=200)) == pytest.approx(25.0, rel=0.01), "it has outlived the others"


def test_answers_of_one_token_say_nothing_of_others() -> None:
    visits = Visits()
    for _ in range(100):
        visits.ended(sequence(2, answer=1))
    assert visits.drafts_left("model", sequence(1)) == 32.0


def test_trials_and_shared_beginnings_say_nothing_of_how_often_a_drafter_is_asked() -> None:
    visits, text = Visits(), sequence(0)
    visits.visit("model", text, 0, tried=False)
    visits.fork(0, 1, 60)
    shared = sequence(1, prompt=400)
    assert (visits.lacking("model", shared), visits.last("model", shared)) == (340, -1)
    visits.visit("model", shared, 1, tried=False)
    shared.tokens += [5] * 300
    visits.visit("model", shared, 2, tried=True)
    assert visits.drafts_left("model", sequence(2)) == 32.0
