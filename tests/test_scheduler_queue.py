"""The order of waiting and running requests, and the work it takes to find it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from crowd import Crowd
from fakes import MixedDrafter, TableModel
from paceline.engine import scheduler as scheduling
from paceline.engine.radix import RadixTree
from paceline.engine.scheduler import Limits, Scheduler
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from serving import engine_of


@pytest.mark.parametrize("seed", range(6))
def test_waiting_requests_are_admitted_in_the_order_of_their_rank(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among requests that are new, preempted, overdue, aborted or waiting for a shared prompt."""
    monkeypatch.setattr(scheduling, "_PATIENCE_STEPS", 8)
    crowd = Crowd("none", Limits(batch=3, chunk=4, cache_tokens=40), Random(seed))
    scheduler, kinds, overdue = crowd.engine.scheduler, 0, 0
    for _ in range(1_000):
        crowd.run(1)
        waiting, came = scheduler.waiting, scheduler._came
        wanted = sorted(
            waiting, key=lambda one: (one.key not in scheduler._overdue, one.priority, scheduler._shares[one.payer], one.key)
        )
        if waiting and scheduler._admissions % 4 == 3:
            oldest = min(waiting, key=lambda one: came[one.key])
            if scheduler._steps - came[oldest.key] > 8:
                wanted.insert(0, oldest)
                overdue += 1
        assert list(scheduler._in_turn()) == wanted
        kinds = max(kinds, len({(one.priority, one.payer) for one in waiting}))
    assert scheduler.preemptions
    assert kinds > 2
    assert overdue > 10


def ranked(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that collects the keys of sequences ranked from now on."""
    seen, rank = [], scheduler._rank

    def watched(sequence: Sequence) -> Any:
        seen.append(sequence.key)
        return rank(sequence)

    monkeypatch.setattr(scheduler, "_rank", watched)
    return seen


@pytest.mark.parametrize("payers", [1, 3])
def test_a_long_queue_is_not_looked_through(payers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2))
    for number in range(1_000):
        engine.add([number % 5], SamplingParams(max_tokens=1), payer=str(number % payers))
    seen = ranked(engine.scheduler, monkeypatch)
    for _ in range(20):
        engine.step()
    assert 900 < len(engine.scheduler.waiting) < 970
    # two requests are admitted in every step, and ranked while they read their prompt
    assert len(seen) <= 20 * 2 * (payers + 1)


def test_the_prefix_of_a_request_that_waits_for_room_is_not_looked_up_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=4, cache_tokens=60, shortest_prefix=4))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    engine.add([1] * 30, params)
    engine.step()
    late, seen, alike = engine.add([1, 2] * 15, params), [], RadixTree.alike
    monkeypatch.setattr(RadixTree, "alike", lambda self, tokens: (seen.append(tokens), alike(self, tokens))[1])
    for _ in range(10):
        engine.step()
    assert (engine.scheduler.waiting, seen) == ([late], [])
    while engine.has_work:
        engine.step()
    assert seen
    assert late.finish_reason == "length"


def test_decoding_requests_are_not_ranked_where_all_drafts_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TableModel(5), MixedDrafter(TableModel(5), depth=6), limits=Limits(batch=4, cache_tokens=500))
    for number in range(4):
        engine.add([number], SamplingParams(max_tokens=100, ignore_eos=True))
    engine.step()
    seen = ranked(engine.scheduler, monkeypatch)
    engine.step()
    assert not seen
    engine.add([1, 2, 3], SamplingParams(max_tokens=2))
    engine.scheduler.limits = Limits(batch=5, cache_tokens=500)
    engine.step()
    assert seen
