"""Flows of many requests take turns by their time so far, so that disturbances of the machine affect all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.bench import batches
from paceline.bench.contest import Rules
from paceline.bench.ours import Flow

QUICK_S, SLOW_S = 0.02, 0.15


def steps(name: str, step_s: float, count: int, said: list[tuple[str, float]]) -> Iterator[Flow]:
    flow = Flow(1)
    for _ in range(count):
        flow.stepped(1, 0, step_s)
        said.append((name, flow.all_s))
        yield flow


def test_the_flow_with_the_least_time_so_far_goes_on_until_all_have_ended() -> None:
    said: list[tuple[str, float]] = []
    ends: list[int] = []
    under_way = [steps("slow", SLOW_S, 20, said), steps("quick", QUICK_S, 300, said)]
    slow, quick = batches._in_turns(under_way, lambda: ends.append(len(said)))
    assert (slow.emitted[-1], quick.emitted[-1]) == (20, 300)
    assert len(ends) == 2
    had = {"slow": 0.0, "quick": 0.0}
    for name, seconds in said[: ends[0]]:
        had[name] = seconds
        assert abs(had["slow"] - had["quick"]) < batches.TURN_S + SLOW_S + 1e-9


def test_a_flow_that_ends_in_its_first_step_is_done() -> None:
    said: list[tuple[str, float]] = []
    only, other = batches._in_turns([steps("only", 9.0, 1, said), steps("other", 0.1, 5, said)], lambda: None)
    assert (only.emitted[-1], other.emitted[-1]) == (1, 5)


def test_a_flow_is_measured_between_moments_at_which_as_much_is_half_written() -> None:
    """Four requests in flight of twelve tokens each: the first ones are shortened so that one ends every third step; a step takes
    one second, one that reads a prompt two more."""
    flow, left = Flow(4), [3, 6, 9, 12]
    written, begun = [0] * 4, 4
    numbers = [0, 1, 2, 3]
    while not flow.enough:
        ended, reads = 0, 0
        written = [count + 1 for count in written]
        for place in range(4):
            if written[place] == left[place]:
                flow.token_ids[numbers[place]] = [0] * left[place]
                ended, reads = ended + left[place], reads + 1
                written[place], left[place], numbers[place] = 0, 12, begun
                begun += 1
        flow.stepped(4, ended, 1.0 + 2.0 * reads)
    began, end = flow.measured
    assert flow.held[began] == flow.held[end]
    # one step of three reads a prompt, one prompt per twelve tokens
    assert flow.measured_tokens % 12 == 0
    assert flow.measured_s == flow.measured_tokens / 4 + 2.0 * flow.measured_tokens / 12


class Said:
    """A decoder with fixed texts, except for one request in one of the repeats."""

    keeps = "text"

    def __init__(self, name: str, wavers_in: int | None = None) -> None:
        self.name, self._wavers_in, self._repeat = name, wavers_in, -1

    def begin(self) -> None:
        self._repeat += 1

    def decode_flow(self, prompts: Any, size: int, max_tokens: int) -> Iterator[Flow]:
        flow = Flow(size)
        while not flow.enough:
            number = len(flow.token_ids)
            wavers = number == 7 and self._repeat == self._wavers_in
            flow.token_ids[number] = [number, 1, 2 + wavers]
            flow.stepped(3, 3, 1.0)
            yield flow


def test_a_text_that_differs_in_any_repeat_is_told() -> None:
    decoders: Any = [Said("plain"), Said("same"), Said("early", 0), Said("late", 2)]
    rows = {row["mode"]: row for row in batches.batch_rows(decoders, [[1]], 1, Rules(3, 3))}
    assert len({row["prompts"] for row in rows.values()}) == 1
    assert {mode: row["prompts"] - row["equal_prompts"] for mode, row in rows.items()} == {
        "plain": 0, "same": 0, "early": 1, "late": 1,
    }  # fmt: skip
    again: Any = [Said("plain", 1), Said("same")]
    plain, same = batches.batch_rows(again, [[1]], 1, Rules(3, 2))
    assert (plain["prompts"] - plain["equal_prompts"], same["prompts"] - same["equal_prompts"]) == (1, 0)
