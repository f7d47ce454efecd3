"""Flows of many requests take turns by the time they have had, so that what the machine does happens to all of them."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench import batches
from paceline.bench.ours import Flow

QUICK_S, SLOW_S = 0.02, 0.15


def steps(name: str, step_s: float, count: int, said: list[tuple[str, float]]) -> Iterator[Flow]:
    flow = Flow()
    for _ in range(count):
        flow.all_s += step_s
        flow.tokens += 1
        said.append((name, flow.all_s))
        yield flow


def test_who_has_had_the_least_time_goes_on_until_all_have_ended() -> None:
    said: list[tuple[str, float]] = []
    ends: list[int] = []
    under_way = [steps("slow", SLOW_S, 20, said), steps("quick", QUICK_S, 300, said)]
    slow, quick = batches._in_turns(under_way, lambda: ends.append(len(said)))
    assert (slow.tokens, quick.tokens) == (20, 300)
    assert len(ends) == 2
    had = {"slow": 0.0, "quick": 0.0}
    for name, seconds in said[: ends[0]]:
        had[name] = seconds
        assert abs(had["slow"] - had["quick"]) < batches._TURN_S + SLOW_S + 1e-9


def test_one_that_ends_in_its_first_step_is_done() -> None:
    said: list[tuple[str, float]] = []
    only, other = batches._in_turns([steps("only", 9.0, 1, said), steps("other", 0.1, 5, said)], lambda: None)
    assert (only.tokens, other.tokens) == (1, 5)
