"""Costs: the time of a step's parts, the rest of the wall time, and forwards behind long contexts."""

from __future__ import annotations

import pytest

from paceline.learning.costs import Costs, Timings


def test_other_is_what_the_parts_leave_of_the_wall_time() -> None:
    costs = Costs()
    for _ in range(4):
        costs.observe(rows=5, batch=1, timings=Timings(0.01, 0.03, 0.005, 0.002), learnt=True)
    profile = costs.profile(wall_s=0.2)
    assert {name: part.ms_per_step for name, part in profile.items()} == pytest.approx(
        {"draft": 10.0, "forward": 30.0, "verify": 5.0, "commit": 2.0, "other": 3.0}
    )
    assert profile["forward"].share == pytest.approx(0.6)
    assert sum(part.share for part in profile.values()) == pytest.approx(1.0)


def test_a_first_ask_of_a_look_up_says_nothing_of_later_ones() -> None:
    costs = Costs()
    costs.looked_up("ngram", 16, {1: 100, 2: 120}, 80.0)
    assert costs.draft_s("ngram", 16, 1) == 0.0
    costs.looked_up("ngram", 16, {1: 101, 2: 125}, 4.0)
    costs.looked_up("suffix", 16, {1: 101}, 40.0)
    costs.looked_up("ngram", 16, {2: 126, 3: 100}, 40.0)
    costs.release(1)
    costs.looked_up("ngram", 16, {1: 102}, 40.0)
    assert costs.draft_s("ngram", 16, 1) == 2.0
    assert costs.draft_s("suffix", 16, 1) == 0.0
    costs.looked_up("ngram", 16, {1: 103, 2: 127, 3: 101}, 9.0)
    assert 2.0 < costs.draft_s("ngram", 16, 1) < 3.0
    assert costs.resumed["suffix"] == 40.0
    assert costs.resumed["ngram"] < 40.0, "two first calls took 80 seconds, two more 40, and one 40"
    costs.looked_up("suffix", 16, {1: 200}, 1000.0)
    assert costs.resumed["suffix"] == pytest.approx(40.0 + 0.1 * 120.0), "a disturbed timing counts as at most four times as long"


def test_a_machine_that_slows_down_does_so_for_rows_and_sequences() -> None:
    costs = Costs(sequence_s=0.1)
    for rows in (1, 16, 32):
        costs.curve.put(rows, 1.0 + 0.1 * rows)
    before = costs.forward_s(16, 16)
    for _ in range(200):
        costs.observe(16, 16, Timings(0.0, 3 * before, 0.0, 0.0), learnt=True)
    assert costs.forward_s(16, 16) == pytest.approx(3 * before, rel=0.01)
    # the per-sequence part is the measured one, nearly: the point for sixteen rows is corrected a little too
    assert costs.curve(16) / costs.forward_s(16, 16) == pytest.approx(2.6 / before, rel=0.1)
    assert costs.forward_s(32, 1) == pytest.approx(3 * 4.2, rel=0.15)


def behind_127_tokens() -> Costs:
    """Costs measured behind 127 tokens; each further token adds 1 ms to a forward, and 0.1 ms to each of its rows."""
    costs = Costs()
    for rows in (1, 16, 32):
        costs.curve.put(rows, 1.0 + 0.1 * rows)
    costs.curve.context, costs.curve.key_s, costs.curve.row_key_s = 127, 1e-3, 1e-4
    return costs


def test_a_row_behind_a_long_context_takes_longer() -> None:
    costs = behind_127_tokens()
    costs.curve.behind(1127, 1)
    assert costs.curve(1) == pytest.approx(1.1 + 1.0 + 0.1)
    # beyond the measured numbers of rows
    assert costs.curve(100) == pytest.approx(11.0 + 1.0 + 10.0)
    assert costs.curve.span(4, 30) == pytest.approx([costs.curve(rows) for rows in range(4, 35)])
    # four sequences of that context read four times as much in all; each row still attends to its own sequence alone
    costs.curve.behind(4 * 1127, 4)
    assert costs.curve(16) == pytest.approx(2.6 + 4.0 + 1.6)
    costs.curve.behind(127, 1)
    assert costs.curve(16) == pytest.approx(2.6)


def test_a_text_that_grows_does_not_bend_the_curve() -> None:
    """Growing times of steps behind growing contexts are expected: they change neither the pace nor the points."""
    costs = behind_127_tokens()
    for tokens in range(127, 4000, 7):
        costs.curve.behind(tokens, 1)
        costs.observe(4, 1, Timings(0.0, 1.4 + (tokens - 127) * 1.4e-3, 0.0, 0.0), learnt=True)
    assert costs.curve.pace == pytest.approx(1.0)
    costs.curve.behind(127, 1)
    assert costs.curve(16) == pytest.approx(2.6)


def test_a_short_text_never_takes_less_than_no_time() -> None:
    costs = behind_127_tokens()
    costs.curve.key_s = 1.0
    costs.curve.behind(0, 1)
    assert costs.curve(1) > 0.0
    assert min(costs.curve.span(1, 20)) > 0.0
