"""What policy, costs and scheduler hold of a request is released when it ends."""

from __future__ import annotations

import pytest

from crowd import drafter_of
from fakes import ChainDrafter, FakeTokenizer, TableModel
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Limits
from paceline.params import SamplingParams
from paceline.policies.adaptive import AdaptivePolicy
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.verifiers.match import Match
from serving import engine_of

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


def test_policy_costs_and_scheduler_hold_nothing_of_ended_requests() -> None:
    model = TableModel(5)
    policy, limits = AdaptivePolicy(), Limits(batch=4, chunk=16, cache_tokens=500, shortest_prefix=4)
    speculative = Speculative(model, drafter_of("merged", model), Match(), policy)
    engine = Engine(speculative, FakeTokenizer.of_letters(5), limits)
    for _ in range(2):
        for n in range(6):
            engine.add([1, 2, 3, 1, 2, 3, 1, 2, n % 5], PARAMS)
        while engine.has_work:
            engine.step()
    engine.forget()
    learnt, values = policy.acceptance, policy._lookup_values._values
    told = (learnt._requests, learnt._open, *policy.costs.read.values(), *values.values())
    assert policy.costs.read, "drafters were measured"
    assert not any(told)
    scheduler = engine.scheduler
    assert not any((scheduler._waited, scheduler._reached, scheduler._overdue, scheduler._came, len(scheduler._shares)))


def test_a_policy_forgets_whom_it_drafted_for() -> None:
    policy, one = AdaptivePolicy(), Sequence(3, (1, 2), SamplingParams(), 0)
    policy._draft_history.record("model", one, 1, tried=False)
    assert policy._draft_history._last_drafts
    policy.release(one.key)
    assert not policy._draft_history._last_drafts


def test_accepted_tokens_count_though_a_stop_cuts_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TableModel(5)
    engine = engine_of(model, ChainDrafter(model, depth=5))
    monkeypatch.setattr(engine.stops, "cut", lambda sequence, verdict: verdict.cut(1, "stop"))
    one = engine.add([1, 2, 3], PARAMS)
    engine.step()
    assert one.speculation.emitted_tokens == 1
    assert one.speculation.accepted_tokens > 1, "a stop does not lower the verifier's acceptance"


def test_a_draft_is_not_kept_of_an_answer_that_a_stop_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is kept for later requests with the same prefix; the data recorded about the draft may be many times as large."""
    model = TableModel(5)
    engine = engine_of(model, ChainDrafter(model, depth=5), Limits(shortest_prefix=1))
    monkeypatch.setattr(engine.stops, "cut", lambda sequence, verdict: verdict.cut(1, "stop"))
    one = engine.add([1, 2, 3], PARAMS)
    engine.step()
    assert one.finish_reason == "stop"
    assert engine.prefixes.kept_tokens
    assert not engine.speculative.acceptance._open
