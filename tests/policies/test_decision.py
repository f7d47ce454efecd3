"""Decisions stand for a while: how long, and what ends them."""

from __future__ import annotations

import pytest

from paceline.decision import Decision
from paceline.params import SamplingParams
from paceline.sequence import Sequence


def batch(*keys: int) -> list[Sequence]:
    return [Sequence(key, (1, 2, 3), SamplingParams(), 0) for key in keys]


def stood(decision: Decision, sequences: list[Sequence], found: bool = False) -> int:
    """Steps for which it stands, if nothing changes."""
    steps = 0
    while steps < 100 and decision.stands(sequences, found, reads=False):
        steps += 1
    return steps


def test_that_nobody_asks_stands_longer_each_time() -> None:
    decision, lengths = Decision(), []
    for _ in range(30):
        decision.take(0, (), batch(1), found=False, reads=False)
        lengths.append(stood(decision, batch(1)))
    assert lengths[:3] == [1, 2, 4]
    assert lengths[-1] == lengths[-2] == 16


def test_a_draft_is_granted_again_for_a_few_steps_and_then_thought_over() -> None:
    decision = Decision()
    decision.take(4, (0,), batch(1, 2), found=False, reads=False)
    assert stood(decision, batch(1, 2)) == 7
    decision.take(0, (), batch(1, 2), found=False, reads=False)
    assert stood(decision, batch(1, 2)) == 1, "and rests begin anew"


@pytest.mark.parametrize("now", [(1, 3), (1,), (1, 2, 3), (2, 1)])
def test_a_draft_is_granted_to_those_for_whom_it_was_decided(now: tuple[int, ...]) -> None:
    decision = Decision()
    decision.take(4, (0,), batch(1, 2), found=False, reads=False)
    assert not decision.stands(batch(*now), found=False, reads=False)


def test_that_nobody_asks_stands_for_a_batch_of_about_that_size() -> None:
    for size, stands in [(16, True), (20, True), (13, True), (12, False), (4, False)]:
        decision = Decision()
        decision.take(0, (), batch(*range(16)), found=False, reads=False)
        assert decision.stands(batch(*range(100, 100 + size)), found=False, reads=False) is stands


def test_what_look_ups_find_ends_a_draft() -> None:
    decision = Decision()
    decision.take(4, (0,), batch(1), found=False, reads=False)
    assert not decision.stands(batch(1), found=True, reads=False), "the deep draft may not be wanted beside it"
    decision.take(4, (0,), batch(1), found=True, reads=False)
    assert not decision.stands(batch(1), found=True, reads=False), "what is found is another thing each time"


def test_that_nobody_asks_beside_look_ups_stands_while_they_find_something() -> None:
    decision = Decision()
    decision.take(0, (), batch(1), found=True, reads=False)
    assert stood(decision, batch(1), found=True) == 1
    decision.take(0, (), batch(1), found=True, reads=False)
    assert not decision.stands(batch(1), found=False, reads=False), "where nothing is found it may be worth it"
    decision.take(0, (), batch(1), found=False, reads=False)
    assert decision.stands(batch(1), found=True, reads=False), "but not the other way round"


@pytest.mark.parametrize("chosen", [(), (0,)])
def test_what_is_decided_beside_a_prompt_stands_for_that_step(chosen: tuple[int, ...]) -> None:
    decision = Decision()
    decision.take(4 * len(chosen), chosen, batch(1), found=False, reads=True)
    assert not decision.stands(batch(1), found=False, reads=False)
    decision.take(4, (0,), batch(1), found=False, reads=False)
    assert not decision.stands(batch(1), found=False, reads=True)
