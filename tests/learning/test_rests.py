"""Rests: when nobody is asked for a draft, and when drafts are tried again."""

from __future__ import annotations

from random import Random

from paceline.learning.rests import Rests


def saw(rests: Rests, seconds: float, tokens: int) -> None:
    """A step in which somebody is asked unless nobody may be."""
    if rests.passed(not rests.now, False):
        rests.saw(seconds, tokens)


def run(rests: Rests, drafting_s: float, plain_s: float, steps: int, least_s: float = 0.1, cold: int = 0) -> list[bool]:
    """Steps of which one with drafts takes so long per token, and one without, but for the first few of them: whether each was
    of a rest."""
    rested, plain = [], 0
    for _ in range(steps):
        rested.append(rests.now)
        plain = plain + 1 if rests.now else 0
        tokens = 1 if rests.now else 3
        seconds = plain_s if plain > cold else drafting_s
        saw(rests, tokens * seconds, tokens)
        if rests.due:
            rests.begin(least_s)
    return rested


def stretches(rested: list[bool]) -> list[int]:
    """Lengths of what is rested in a row."""
    lengths = [0]
    for one in rested:
        if one:
            lengths[-1] += 1
        elif lengths[-1]:
            lengths.append(0)
    return lengths if lengths[-1] else lengths[:-1]


def test_where_drafts_win_few_steps_go_without_and_ever_fewer() -> None:
    rested = run(Rests(), 1.0, 2.0, 4000)
    assert set(stretches(rested)) == {6}
    assert sum(rested) < 0.01 * 4000
    assert run(Rests(), 1.0, 0.99, 4000) == rested, "what is hardly better is not"


def test_where_drafts_lose_they_are_tried_now_and_then() -> None:
    rested = run(Rests(), 1.0, 0.9, 4000, cold=2)
    assert stretches(rested)[:6] == [6, 78, 142, 270, 526, 526]
    assert sum(rested[2000:]) > 0.9 * 2000


def test_they_come_back_when_they_win_again() -> None:
    rests = Rests()
    run(rests, 1.0, 0.9, 3000)
    rested = run(rests, 0.5, 0.9, 3000)
    assert sum(rested[600:]) < 0.02 * 2400


def test_nobody_rests_where_no_step_without_drafts_could_be_that_fast() -> None:
    assert not any(run(Rests(), 1.0, 0.5, 1000, least_s=1.3))
    assert not any(run(Rests(), 1.0, 0.5, 1000, least_s=0.0)), "nor where nothing was measured"
    assert any(run(Rests(), 1.0, 0.5, 1000, least_s=1.2)), "it is warmer among its like"


def test_a_step_that_stands_for_several_counts_as_so_many() -> None:
    """Of what takes so long alone only one in four is seen, and of what follows each."""
    rests = Rests()
    for _ in range(150):
        rests.saw(2.0, 2)
        rests.saw(1.0, 1, 4)
    assert abs(rests._step_s / rests._tokens - 1.0) < 1e-9
    assert abs(rests._step_s - 6 / 5) < 0.1


def test_steps_count_whether_they_are_seen_or_not() -> None:
    """Which of them are learnt from is for others to say."""
    rests = Rests()
    for step in range(49):
        assert rests.passed(True, False), step
        rests.passed(False, False)
    assert not rests.due
    rests.passed(True, False)
    assert rests.due
    rests.now, rests._left = True, 20
    assert not any(rests.passed(False, False) for _ in range(20))
    assert not rests.now


def test_a_step_that_reads_prompts_is_not_seen_and_passes_in_a_rest_all_the_same() -> None:
    rests = Rests()
    assert not any(rests.passed(True, True) for _ in range(100))
    assert not rests.due, "nothing is compared with it"
    rests.now, rests._left = True, 20
    assert not any(rests.passed(False, True) for _ in range(20))
    assert not rests.now


def test_steps_are_timed_once_somebody_was_asked_long_enough_and_not_while_they_rest() -> None:
    rests, seen = Rests(), []
    for _ in range(200):
        seen.append((rests.timing, rests._left > 0, rests.now))
        saw(rests, 0.9 if rests.now else 1.0, 1)
        if rests.due:
            rests.begin(0.1)
    assert all(now == (timing or left) and not (timing and left) for timing, left, now in seen)
    assert any(timing for timing, _, _ in seen)
    assert any(left for _, left, _ in seen)


def test_on_a_busy_machine_drafts_that_win_are_not_left_for_long() -> None:
    """One step in six takes two to four times as long, with drafts and without: as on two processors with two busy programs."""
    chance = Random(2)
    for gain, most in ((1.2, 0.1), (1.4, 0.03)):
        rests, rested = Rests(), 0
        for _ in range(20_000):
            seconds = chance.uniform(2.0, 4.0) if chance.random() < 1 / 6 else 1.0
            rested += rests.now
            saw(rests, seconds / (1.0 if rests.now else gain), 1)
            if rests.due:
                rests.begin(0.9)
        assert rested < most * 20_000


def test_a_step_that_was_disturbed_decides_nothing() -> None:
    rests = Rests()
    for step in range(3000):
        plain = rests.now
        saw(rests, (50.0 if step % 100 == 0 else 1.0) * (1.5 if plain else 1.0), 1)
        if rests.due:
            rests.begin(0.1)
        assert not rests._left
