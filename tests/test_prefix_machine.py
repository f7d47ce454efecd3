"""Any order of requests, aborts, steps, shortages and forgetting: each request ends once, with the text it has alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from crowd import Crowd
from lives import both_lengths, live
from paceline.engine.scheduler import Limits
from paceline.sequence import Sequence

LONGEST_WAIT = 600
"""Steps: far more than the requests waiting (at most six) and in flight would take one after another."""


class Requests(RuleBasedStateMachine):
    kind = "none"
    crowd: Crowd

    @initialize(
        seed=st.integers(0, 2**20),
        batch=st.integers(1, 4),
        chunk=st.integers(1, 9),
        cache_tokens=st.sampled_from([24, 40, 60, 500]),
    )
    def begin(self, seed: int, batch: int, chunk: int, cache_tokens: int) -> None:
        self.crowd = Crowd(self.kind, Limits(batch, chunk, cache_tokens), Random(seed))
        self.waits: dict[int, int] = {}

    @precondition(lambda self: len(self.crowd.engine.scheduler.waiting) < 6)
    @rule()
    def add(self) -> None:
        self.crowd.add()

    @precondition(lambda self: self.crowd.lives)
    @rule()
    def add_its_like(self) -> None:
        """Adds another choice of the latest prompt."""
        last = list(self.crowd.lives.values())[-1].sequence
        self.crowd.admit(last.prompt, last.params.model_copy(update={"seed": last.seed + 1}), last.tenant, last.priority)

    @precondition(lambda self: self.crowd.lives)
    @rule()
    def abort(self) -> None:
        self.crowd.abort()

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            before = [sequence.key for sequence in self.crowd.engine.scheduler.waiting]
            self.crowd.step()
            for key in before:
                self.waits[key] = self.waits.get(key, 0) + 1
                assert self.waits[key] <= LONGEST_WAIT

    @precondition(lambda self: self.crowd.engine.scheduler.running)
    @rule(tokens=st.integers(0, 40))
    def evict(self, tokens: int) -> None:
        prefixes = self.crowd.engine.prefixes
        prefixes.make_room(tokens)
        assert prefixes.kept_tokens <= tokens

    @precondition(lambda self: len(self.crowd.engine.scheduler.running) > 1)
    @rule()
    def preempt(self) -> None:
        """Preempts as if the cache were full."""
        scheduler = self.crowd.engine.scheduler
        first = min(scheduler.running, key=lambda one: (one.key not in scheduler._overdue, one.priority, one.key))
        limits, scheduler.limits = scheduler.limits, Limits(cache_tokens=1)
        scheduler._preempt()
        scheduler.limits = limits
        assert scheduler.running == [first]

    @invariant()
    def each_is_in_one_place(self) -> None:
        if not hasattr(self, "crowd"):
            return
        scheduler, prefixes = self.crowd.engine.scheduler, self.crowd.engine.prefixes
        running, waiting = keys(scheduler.running), keys(scheduler.waiting)
        assert set(prefixes._running) == set(running)
        assert waiting == sorted(waiting)
        assert not set(running) & set(waiting)
        assert not {*running, *waiting} & set(prefixes._ended)
        assert sum(len(tree) for tree in prefixes._trees.values()) == len(prefixes._running) + len(prefixes._ended)
        assert set(scheduler._came) == {*running, *waiting}

    def teardown(self) -> None:
        if hasattr(self, "crowd"):
            self.crowd.finish()


def keys(sequences: list[Sequence]) -> list[int]:
    return [sequence.key for sequence in sequences]


@both_lengths(40, 60)
@pytest.mark.parametrize("kind", ["none", "ngram", "merged", "TreeDrafter"])
def test_any_order_of_requests_aborts_and_steps_keeps_every_text(kind: str, runs: int, steps: int) -> None:
    machine = type("Machine", (Requests,), {"kind": kind})
    live(machine, runs, steps)
