"""DraftHistory: the text that costly drafters have read, and over how many future drafts reading the rest pays off."""

from __future__ import annotations

import pytest

from paceline.learning.draft_history import DraftHistory
from paceline.params import SamplingParams
from paceline.sequence import Sequence


def sequence(key: int, prompt: int = 100, answer: int = 0) -> Sequence:
    made = Sequence(key, (1,) * prompt, SamplingParams(max_tokens=1000), 0)
    made.tokens += [2] * answer
    return made


def test_a_drafter_lacks_what_was_written_since_it_was_asked() -> None:
    history, text = DraftHistory(), sequence(0)
    assert (history.lacking("model", text), history.last("model", text)) == (100, -1)
    history.record("model", text, 7, tried=False)
    text.tokens += [5, 6, 7]
    assert (history.lacking("model", text), history.last("model", text)) == (3, 7)
    assert history.lacking("other", text) == 103
    history.release(0)
    assert history.lacking("model", text) == 103


def test_drafts_left_are_estimated_from_answer_lengths_and_the_draft_interval() -> None:
    history, text = DraftHistory(), sequence(0)
    assert history.drafts_left("model", text) == 32.0
    for step in range(100):
        history.record("model", text, step, tried=False)
        text.tokens += [5] * 8
    assert history.drafts_left("model", sequence(1)) == pytest.approx(8.0, rel=0.01)
    assert history.drafts_left("model", sequence(1, answer=63)) == 1.0, "at least the draft being decided"
    for _ in range(100):
        history.ended(sequence(2, answer=400))
    assert history.drafts_left("model", sequence(1)) == pytest.approx(50.0, rel=0.01)
    assert history.drafts_left("model", sequence(1, answer=600)) == pytest.approx(50.0, rel=0.01), "at most the tokens left"
    history._length = 8.0
    assert history.drafts_left("model", sequence(1, answer=200)) == pytest.approx(25.0, rel=0.01), "longer than the mean answer"


def test_answers_of_one_token_do_not_change_the_estimate_of_drafts_left() -> None:
    history = DraftHistory()
    for _ in range(100):
        history.ended(sequence(2, answer=1))
    assert history.drafts_left("model", sequence(1)) == 32.0


def test_trials_and_forks_do_not_change_the_estimate_of_drafts_left() -> None:
    history, text = DraftHistory(), sequence(0)
    history.record("model", text, 0, tried=False)
    history.fork(0, 1, 60)
    shared = sequence(1, prompt=400)
    assert (history.lacking("model", shared), history.last("model", shared)) == (340, -1)
    history.record("model", shared, 1, tried=False)
    shared.tokens += [5] * 300
    history.record("model", shared, 2, tried=True)
    assert history.drafts_left("model", sequence(2)) == 32.0
