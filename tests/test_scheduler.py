"""Many requests over time: however they are added, aborted and preempted, each ends once, with the text it has alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from crowd import Crowd, WatchedModel
from fakes import MixedDrafter, TableModel
from paceline.budget import Budget
from paceline.engine.engine import Engine, RequestError
from paceline.engine.scheduler import Limits
from paceline.engine.shares import Shares
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from serving import engine_of, served

OPERATIONS = 1_700
"""Per case below; 12 cases make 20,000 operations a run."""


CASES = [
    ("none", Limits(batch=3, chunk=4, cache_tokens=40)),
    ("none", Limits(batch=1, chunk=1, cache_tokens=25)),
    ("ngram", Limits(batch=4, chunk=3, cache_tokens=45)),
    ("model", Limits(batch=3, chunk=5, cache_tokens=40)),
    ("model", Limits(batch=8, chunk=64, cache_tokens=2_000)),
    ("merged", Limits(batch=3, chunk=7, cache_tokens=40)),
    ("TreeDrafter", Limits(batch=4, chunk=2, cache_tokens=30)),
    ("BlindTreeDrafter", Limits(batch=2, chunk=9, cache_tokens=50)),
    ("GreedyOfBudgetDrafter", Limits(batch=3, chunk=4, cache_tokens=24)),
    ("MixedDrafter", Limits(batch=5, chunk=1, cache_tokens=60)),
    ("WrongDrafter", Limits(batch=3, chunk=4, cache_tokens=40)),
    ("EmptyDrafter", Limits(batch=3, chunk=4, cache_tokens=40)),
]


@pytest.mark.parametrize(("kind", "limits"), CASES)
def test_every_request_ends_once_with_the_text_it_has_alone(kind: str, limits: Limits) -> None:
    crowd = Crowd(kind, limits, Random(CASES.index((kind, limits))))
    crowd.run(OPERATIONS)
    crowd.finish()
    assert sum(life.ends for life in crowd.lives.values()) > 20
    assert sum(life.sequence.cached_tokens for life in crowd.lives.values()) > 0
    if limits.cache_tokens <= 60 and limits.batch > 2:
        assert crowd.engine.scheduler.preemptions
    if limits.batch > 2 and limits.chunk < 64:
        assert crowd.chunked, "no prompt was chunked beside sequences that decode"


@pytest.mark.full
@pytest.mark.parametrize(("kind", "limits"), CASES)
def test_every_request_ends_once_with_the_text_it_has_alone_at_length(kind: str, limits: Limits) -> None:
    """120,000 operations over all cases."""
    crowd = Crowd(kind, limits, Random(1000 + CASES.index((kind, limits))))
    crowd.run(10_000)
    crowd.finish()


def test_a_decoding_sequence_is_not_held_up_by_the_prompts_of_others() -> None:
    model = WatchedModel(vocab_size=5)
    engine = engine_of(model, limits=Limits(batch=4, chunk=3, cache_tokens=500))
    first = engine.add([1], SamplingParams(max_tokens=30, ignore_eos=True))
    engine.step()
    for _ in range(3):
        engine.add([2] * 40, SamplingParams(max_tokens=2))
    for size in range(2, 30):
        engine.step()
        assert len(first.generated) == size


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    engine = engine_of(WatchedModel(vocab_size=5), limits=Limits(batch=6, chunk=16, cache_tokens=2_000, shortest_prefix=1_000))
    long = engine.add([2] * 160, SamplingParams(max_tokens=2))
    engine.step()
    longer = engine.add([3] * 170, SamplingParams(max_tokens=2))
    short = [engine.add([4] * 3, SamplingParams(max_tokens=1, ignore_eos=True)) for _ in range(2)]
    late = engine.add([1] * 3, SamplingParams(max_tokens=1, ignore_eos=True), priority=1)
    engine.step()
    assert short[0].finish_reason == "length"
    engine.step()
    assert short[1].finish_reason == "length"
    steps = 3
    while long.finish_reason is None:
        engine.step()
        steps += 1
    # the first request in the queue gets three quarters of every step
    assert steps <= 160 / 12 + 2
    assert (longer.finish_reason, late.finish_reason) == (None, None)


def test_the_first_to_come_is_the_first_to_run_even_after_preemption() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=4, chunk=64, cache_tokens=30))
    sequences = [engine.add([n % 5] * 6, SamplingParams(max_tokens=12, ignore_eos=True)) for n in range(8)]
    order: list[Sequence] = []
    while engine.has_work:
        running = engine.scheduler.running + list(engine.scheduler.waiting)
        assert [s.key for s in running] == sorted(s.key for s in running)
        order += [progress.sequence for progress in engine.step() if progress.finished]
    assert engine.scheduler.preemptions
    assert sorted(s.key for s in order) == [s.key for s in sequences]


def test_a_stream_of_newcomers_starves_nobody() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=4, cache_tokens=40))
    patient = [engine.add([1] * 20, SamplingParams(max_tokens=10, ignore_eos=True)) for _ in range(3)]
    for _ in range(120):
        engine.add([2], SamplingParams(max_tokens=3))
        engine.step()
    assert all(sequence.finish_reason for sequence in patient)


def kept_busy(engine: Engine, others: Callable[[], object], steps: int, until: Sequence) -> int:
    """The number of steps until a sequence ends while `others` adds requests."""
    for taken in range(steps):
        others()
        engine.step()
        if until.finish_reason is not None:
            return taken
    raise AssertionError("it starves")


def test_urgent_requests_are_preempted_last() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=64, cache_tokens=30))
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    idle, calm = engine.add([1] * 6, params, priority=5), engine.add([2] * 6, params)
    engine.step()
    urgent = engine.add([3] * 6, params, priority=-5)
    order = []
    while not engine.scheduler.preemptions:
        order += [progress.sequence for progress in engine.step() if progress.finished]
    assert engine.scheduler.running == [calm, urgent], "the least urgent request is preempted, though it is the oldest"
    while engine.has_work:
        order += [progress.sequence for progress in engine.step() if progress.finished]
    assert order[0] == calm
    assert set(order[1:]) == {idle, urgent}


def test_tenants_are_served_alike_however_much_they_ask_for() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=64))
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    many = [engine.add([1, 2, 3], params, tenant="many") for _ in range(30)]
    for _ in range(5):
        engine.step()
    few = [engine.add([1, 2, 3], params, tenant="few") for _ in range(5)]
    while few[-1] in engine.scheduler.waiting:
        counts = [engine.scheduler._shares[tenant] for tenant in ("many", "few")]
        assert abs(counts[0] - counts[1]) <= 3 * 12
        engine.step()
    assert sum(sequence.finish_reason is not None for sequence in many) <= 7


def test_a_payer_of_many_tenants_is_served_as_one_of_a_single_one() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=64))
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    many = [engine.add([1, 2, 3], params, tenant=f"many/{number}", payer="many") for number in range(30)]
    few = [engine.add([1, 2, 3], params, tenant="few") for _ in range(5)]
    while few[-1].finish_reason is None:
        engine.step()
    assert sum(sequence.finish_reason is not None for sequence in many) <= 7
    assert few[0].payer == "few"


def test_a_payer_is_charged_for_what_was_fed_and_for_no_token_twice() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=8, cache_tokens=400))
    one = engine.add([1] * 20, SamplingParams(max_tokens=9, ignore_eos=True), payer="a")
    scheduler, charged = engine.scheduler, []
    for _ in range(5):
        engine.step()
        charged.append(scheduler._shares["a"])
    assert charged == [8, 16, 20, 21, 22]
    # the request is preempted, and its text is read again
    scheduler.running.remove(one)
    engine.prefixes.release(one)
    scheduler._queue(one)
    charged.clear()
    for _ in range(4):
        engine.step()
        charged.append(scheduler._shares["a"])
    assert charged == [22, 22, 23, 24]


def test_a_short_prompt_of_another_tenant_does_not_wait_for_a_long_one_to_be_read() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=4))
    long = engine.add([1, 2] * 100, SamplingParams(max_tokens=1), tenant="long")
    engine.step()
    short = engine.add([3] * 6, SamplingParams(max_tokens=1), tenant="short")
    for _ in range(4):
        engine.step()
    assert short.finish_reason
    assert not long.finish_reason


def test_an_overdue_request_is_admitted_before_more_urgent_ones() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=4, cache_tokens=60))
    urgent = [engine.add([2] * 5, SamplingParams(max_tokens=9, ignore_eos=True), priority=-9) for _ in range(4)]
    patient = engine.add([1] * 25, SamplingParams(max_tokens=12, ignore_eos=True), priority=9, tenant="patient")

    def more() -> None:
        if len(engine.scheduler.waiting) < 4:
            urgent.append(engine.add([2] * 5, SamplingParams(max_tokens=9, ignore_eos=True), priority=-9))

    assert kept_busy(engine, more, 1000, patient) > 256, "urgent requests come first"
    # and once admitted it was not preempted for more urgent ones
    assert patient.generated_tokens == 12


def test_a_prompt_in_flight_is_read_whatever_more_urgent_ones_come() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=4, chunk=8, cache_tokens=2_000, shortest_prefix=1_000))
    patient = engine.add([1] * 60, SamplingParams(max_tokens=3, ignore_eos=True), priority=9)

    def more() -> None:
        while len(engine.scheduler.running) + len(engine.scheduler.waiting) < 4:
            engine.add([2] * 24, SamplingParams(max_tokens=1), priority=-9)

    assert 256 < kept_busy(engine, more, 1000, patient) < 256 + 20
    assert not engine.scheduler._overdue


def test_an_admission_leaves_room_for_the_answers_of_running_requests() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=4, chunk=200, cache_tokens=160, shortest_prefix=1_000))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    first = engine.add([1] * 100, params)
    # a sixteenth of the cache, 10 tokens, is left free
    second, third = engine.add([2] * 51, params), engine.add([3], params)
    engine.step()
    assert engine.scheduler.running == [first], "no smaller request overtakes the next one"
    while second.finish_reason is None or third.finish_reason is None:
        engine.step()
    alone = engine.add([4] * 158, SamplingParams(max_tokens=1))
    while engine.has_work:
        engine.step()
    assert alone.finish_reason == "length"
    assert not engine.scheduler.preemptions


def scarce(engine: Engine) -> tuple[Sequence, list[Sequence]]:
    """A calm request that is admitted at once, and urgent ones added until it is preempted."""
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    calm = engine.add([1] * 4, params, priority=5)
    for _ in range(300):
        engine.step()
    urgent = [engine.add([2] * 80, params, priority=-5)]
    while not engine.scheduler.preemptions:
        engine.step()
    assert calm in engine.scheduler.waiting
    return calm, urgent


def test_a_preempted_request_has_not_waited_while_it_ran() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=500, cache_tokens=450))
    calm, (urgent,) = scarce(engine)
    engine.abort(urgent)
    engine.step()
    assert calm in engine.scheduler.running
    urgent = engine.add([3] * 80, SamplingParams(max_tokens=400, ignore_eos=True), priority=-5)
    while engine.scheduler.preemptions < 2:
        engine.step()
    assert engine.scheduler.running == [urgent], "the calm request came long ago, yet urgent ones come first"


def test_the_waits_of_a_request_preempted_repeatedly_add_up() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=500, cache_tokens=450))
    calm, others = scarce(engine)
    for number in range(2):
        # too short to become overdue, each time
        for _ in range(150):
            engine.step()
        assert calm in engine.scheduler.waiting
        engine.abort(others[-1])
        engine.step()
        assert calm in engine.scheduler.running
        others.append(engine.add([3] * 80, SamplingParams(max_tokens=400, ignore_eos=True), priority=-5))
        preempted = engine.scheduler.preemptions
        while engine.scheduler.preemptions == preempted and calm.finish_reason is None:
            engine.step()
        assert (calm in engine.scheduler.waiting) == (number == 0)
    assert calm.finish_reason == "length" or calm in engine.scheduler.running


def test_an_overdue_request_behind_one_that_waited_briefly_is_found() -> None:
    """A preempted request is queued before those that came after it, some of which have waited longer."""
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=500, cache_tokens=450))
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    first, second = engine.add([1] * 4, params, priority=9), engine.add([2] * 4, params, priority=9)
    scheduler = engine.scheduler
    scheduler._steps, scheduler._admissions = 1000, 3
    scheduler._came.update({first.key: 990, second.key: 10})
    scheduler._waited[first.key] = 0
    assert next(scheduler._in_turn()) is second


def test_a_tenant_that_returns_has_saved_up_no_share() -> None:
    shares = Shares()
    shares.enter("a")
    shares.charge("a", 100)
    shares.enter("b")
    assert shares["b"] == 100
    shares.charge("b", 50)
    shares.leave("b")
    shares.enter("b")
    assert shares["b"] == 150, "nothing is forgiven either"
    for tenant in ("a", "b"):
        shares.leave(tenant)
    assert len(shares) == 0


def test_tenants_that_left_are_forgotten_once_all_had_as_much() -> None:
    shares = Shares()
    shares.enter("stays")
    for number in range(1000):
        shares.enter(str(number))
        shares.charge(str(number), 5)
        shares.charge("stays", 1)
        shares.leave(str(number))
    assert len(shares) <= 8


def test_drafts_of_one_step_share_the_room_that_is_left() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=3, cache_tokens=30))
    for n in range(3):
        engine.add([n] * 6, SamplingParams(max_tokens=20))
    assert [work.room.nodes for work in engine.scheduler.pick(Budget(8, 8))] == [8, 4, 0]


def test_no_draft_is_asked_for_past_the_last_token_that_may_come() -> None:
    model = WatchedModel(vocab_size=5, context_length=30)
    for params, prompt in [(SamplingParams(max_tokens=5), 3), (SamplingParams(max_tokens=500), 20)]:
        model.steps.clear()
        engine = engine_of(model, MixedDrafter(model, depth=6))
        ((sequence, _),) = served(engine, [([1] * prompt, params)])
        last = min(prompt + params.max_tokens, 30) - 1
        assert len(sequence.tokens) == last + 1
        # the last token is chosen but never fed
        assert max(int(step.positions.max()) for step in model.steps) < last


@pytest.mark.parametrize(
    ("prompt", "params", "saying"),
    [
        ([], {}, "empty"),
        ([7], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([1] * 30, {}, "only 29 fit"),
        ([1], {"logit_bias": {6: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": {6}}, "stop_token_ids"),
        pytest.param(
            [1],
            {"stop_token_ids": set(range(5)), "min_tokens": 2},
            "min_tokens",
        ),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_leaves_nothing(prompt, params, saying: str) -> None:
    engine = engine_of(TableModel(5), limits=Limits(cache_tokens=30))
    with pytest.raises(RequestError, match=saying):
        engine.add(prompt, SamplingParams(**params))
    assert not engine.has_work
    assert engine.step() == []
