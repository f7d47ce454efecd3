"""Speculation: what is counted of a sequence's steps, by the depth that was drafted and accepted."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from paceline.sequence import Speculation


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=30))
def test_a_step_counts_at_every_depth_that_it_reached(steps: list[tuple[int, int]]) -> None:
    told, drafted, accepted = Speculation(), Counter[int](), Counter[int]()
    for deepest, right in ((deepest, min(deepest, right)) for deepest, right in steps):
        told.drafted_to[deepest] += 1
        told.accepted_to[right] += 1
        drafted.update(range(1, deepest + 1))
        accepted.update(range(1, right + 1))
    assert told.drafted_by_depth == drafted
    assert told.accepted_by_depth == accepted
    assert told.acceptance_by_depth == [accepted[depth] / drafted[depth] for depth in sorted(drafted)]


def test_nothing_drafted_is_nothing_counted() -> None:
    assert Speculation().drafted_by_depth == Speculation().accepted_by_depth == Counter()
    assert Speculation().acceptance_by_depth == []
