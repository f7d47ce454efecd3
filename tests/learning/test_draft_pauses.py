"""DraftPauses: when drafting pauses, and when drafts are tried again."""

from __future__ import annotations

from random import Random

from paceline.learning.draft_pauses import DraftPauses


def saw(pauses: DraftPauses, seconds: float, tokens: int) -> None:
    """One step, which asks drafters unless a pause is active."""
    if pauses.passed(not pauses.active, False):
        pauses.saw(seconds, tokens)


def run(pauses: DraftPauses, drafting_s: float, plain_s: float, steps: int, least_s: float = 0.1, cold: int = 0) -> list[bool]:
    """Steps with drafts take `drafting_s` per token, steps of a pause `plain_s` except for its first `cold` ones. Returns whether
    each step was in a pause."""
    paused, plain = [], 0
    for _ in range(steps):
        paused.append(pauses.active)
        plain = plain + 1 if pauses.active else 0
        tokens = 1 if pauses.active else 3
        seconds = plain_s if plain > cold else drafting_s
        saw(pauses, tokens * seconds, tokens)
        if pauses.due:
            pauses.begin(least_s)
    return paused


def stretches(paused: list[bool]) -> list[int]:
    """Lengths of consecutive paused steps."""
    lengths = [0]
    for one in paused:
        if one:
            lengths[-1] += 1
        elif lengths[-1]:
            lengths.append(0)
    return lengths if lengths[-1] else lengths[:-1]


def test_where_drafts_win_less_than_one_percent_of_steps_go_without() -> None:
    paused = run(DraftPauses(), 1.0, 2.0, 4000)
    assert set(stretches(paused)) == {6}
    assert sum(paused) < 0.01 * 4000
    assert run(DraftPauses(), 1.0, 0.99, 4000) == paused, "a difference this small counts as none"


def test_where_drafts_lose_they_are_tried_now_and_then() -> None:
    paused = run(DraftPauses(), 1.0, 0.9, 4000, cold=2)
    assert stretches(paused)[:6] == [6, 78, 142, 270, 526, 526]
    assert sum(paused[2000:]) > 0.9 * 2000


def test_paused_drafts_resume_when_they_win_again() -> None:
    pauses = DraftPauses()
    run(pauses, 1.0, 0.9, 3000)
    paused = run(pauses, 0.5, 0.9, 3000)
    assert sum(paused[600:]) < 0.02 * 2400


def test_no_pause_begins_where_plain_steps_could_not_be_that_fast() -> None:
    assert not any(run(DraftPauses(), 1.0, 0.5, 1000, least_s=1.3))
    assert not any(run(DraftPauses(), 1.0, 0.5, 1000, least_s=0.0)), "nor where nothing was measured"
    assert any(run(DraftPauses(), 1.0, 0.5, 1000, least_s=1.2)), "plain steps are faster after other plain steps"


def test_a_timed_step_is_weighted_by_the_steps_it_stands_for() -> None:
    """Of every five steps one slow step stands for itself and one faster step for four."""
    pauses = DraftPauses()
    for _ in range(150):
        pauses.saw(2.0, 2)
        pauses.saw(1.0, 1, 4)
    assert abs(pauses._step_s / pauses._tokens - 1.0) < 1e-9
    assert abs(pauses._step_s - 6 / 5) < 0.1


def test_steps_that_are_not_seen_count_towards_timings_and_pauses() -> None:
    """Which steps are timed is decided elsewhere."""
    pauses = DraftPauses()
    for step in range(49):
        assert pauses.passed(True, False), step
        pauses.passed(False, False)
    assert not pauses.due
    pauses.passed(True, False)
    assert pauses.due
    pauses.active, pauses._left = True, 20
    assert not any(pauses.passed(False, False) for _ in range(20))
    assert not pauses.active


def test_a_step_that_reads_prompts_is_not_seen_and_passes_in_a_rest_all_the_same() -> None:
    pauses = DraftPauses()
    assert not any(pauses.passed(True, True) for _ in range(100))
    assert not pauses.due, "there is no timing to compare"
    pauses.active, pauses._left = True, 20
    assert not any(pauses.passed(False, True) for _ in range(20))
    assert not pauses.active


def test_steps_are_timed_once_somebody_was_asked_long_enough_and_not_while_they_rest() -> None:
    pauses, seen = DraftPauses(), []
    for _ in range(200):
        seen.append((pauses.timing, pauses._left > 0, pauses.active))
        saw(pauses, 0.9 if pauses.active else 1.0, 1)
        if pauses.due:
            pauses.begin(0.1)
    assert all(now == (timing or left) and not (timing and left) for timing, left, now in seen)
    assert any(timing for timing, _, _ in seen)
    assert any(left for _, left, _ in seen)


def test_on_a_busy_machine_drafts_that_win_are_not_left_for_long() -> None:
    """One step in six takes two to four times as long, with and without drafts: as on two cores shared with two busy programs."""
    chance = Random(2)
    for gain, most in ((1.2, 0.1), (1.4, 0.03)):
        pauses, paused = DraftPauses(), 0
        for _ in range(20_000):
            seconds = chance.uniform(2.0, 4.0) if chance.random() < 1 / 6 else 1.0
            paused += pauses.active
            saw(pauses, seconds / (1.0 if pauses.active else gain), 1)
            if pauses.due:
                pauses.begin(0.9)
        assert paused < most * 20_000


def test_a_step_that_was_disturbed_decides_nothing() -> None:
    pauses = DraftPauses()
    for step in range(3000):
        plain = pauses.active
        saw(pauses, (50.0 if step % 100 == 0 else 1.0) * (1.5 if plain else 1.0), 1)
        if pauses.due:
            pauses.begin(0.1)
        assert not pauses._left
