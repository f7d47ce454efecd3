"""Steps that the device has no memory for: requests take turns, and one that alone needs too much ends with an error."""

from __future__ import annotations

import sys

import pytest
import torch

from fakes import DenseTableCache, RecordingCache, TableModel, coupled
from paceline.cache.pages import OutOfPages
from paceline.engine import scheduler
from paceline.engine.engine import Engine, OutOfMemory
from paceline.engine.scheduler import Limits
from paceline.models.base import Scores
from paceline.shortage import memory_ended
from paceline.step import Step
from serving import engine_of
from test_engine_errors import PARAMS, drafters, ended, idle


def scarce(engine: Engine, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    """Limits the target's cache to `slots` tokens of all sequences together."""
    cache, lengths = engine.speculative.cache, dict[int, int]()
    stage, release = cache.stage, cache.release

    def staged(step: Step) -> None:
        wanted = lengths | {segment.sequence.key: segment.end for segment in step.segments}
        if sum(wanted.values()) > slots:
            raise OutOfPages(1, 0, slots)
        stage(step)
        lengths.update(wanted)

    monkeypatch.setattr(cache, "stage", staged)
    monkeypatch.setattr(cache, "release", lambda key: (lengths.pop(key, None), release(key)))


@pytest.mark.parametrize("draft", range(3))
def test_where_memory_ends_before_the_cache_is_full_requests_take_turns(draft: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, limits = TableModel(5), Limits(batch=4, chunk=8, cache_tokens=10_000, shortest_prefix=4)
    prompts = [[at % 4, 1, 2, 3, *[at % 3] * 10] for at in range(8)]
    wanted = []
    for prompt in prompts:
        alone = engine_of(model)
        (sequence,) = ended(alone, [alone.add(prompt, PARAMS)])
        wanted.append(sequence.generated)
    engine = engine_of(model, drafters(model)[draft], limits=limits)
    scarce(engine, monkeypatch, 60)
    sequences = [engine.add(prompt, PARAMS) for prompt in prompts]
    last = ended(engine, sequences)
    assert [one.generated for one in sequences] == wanted
    assert all(last[one].error is None for one in sequences)
    assert engine.scheduler.limits.cache_tokens <= 60


def test_a_request_that_no_memory_suffices_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=4, chunk=8, cache_tokens=10_000))
    scarce(engine, monkeypatch, 20)
    long, short = engine.add([1] * 30, PARAMS), engine.add([2] * 3, PARAMS)
    last = ended(engine, [long, short])
    assert isinstance(last[long].error, OutOfPages)
    assert (long.finish_reason, short.finish_reason, len(short.generated)) == ("abort", "length", 12)


class CrampedModel(TableModel):
    """A forward over more than `most` tokens of context, all sequences together, runs out of memory."""

    most = 60

    def score(self, step, cache, taps=()) -> Scores:
        if sum(segment.end for segment in step.segments) > self.most:
            raise torch.OutOfMemoryError
        return super().score(step, cache, taps)


def watched_empty_cache(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """The exception in handling at each torch.cuda.empty_cache: None, or its frames would hold the tensors of the forward."""
    seen: list[BaseException | None] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(sys.exception()))
    return seen


@pytest.mark.parametrize("cache", [RecordingCache, DenseTableCache])
@pytest.mark.parametrize("draft", range(3))
def test_where_a_forward_has_no_memory_requests_take_turns(draft: int, cache, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied = watched_empty_cache(monkeypatch)
    prompts = [[at % 4, 1, 2, 3, *[at % 3] * 10] for at in range(8)]
    wanted = []
    for prompt in prompts:
        alone = engine_of(TableModel(5))
        (sequence,) = ended(alone, [alone.add(prompt, PARAMS)])
        wanted.append(sequence.generated)
    model = CrampedModel(5, cache=cache)
    engine = engine_of(model, drafters(model)[draft], Limits(batch=4, chunk=64, cache_tokens=10_000, shortest_prefix=4))
    sequences = [engine.add(prompt, PARAMS) for prompt in prompts]
    last = ended(engine, sequences)
    assert [one.generated for one in sequences] == wanted
    assert all(last[one].error is None for one in sequences)
    assert emptied
    assert not any(emptied)
    assert idle(engine)


@pytest.mark.parametrize("draft", range(3))
def test_a_request_that_alone_is_too_much_for_the_device_says_so(draft: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrampedModel, "most", 20)
    model = CrampedModel(5)
    engine = engine_of(model, drafters(model)[draft], Limits(batch=4, chunk=8, cache_tokens=10_000))
    long, short = engine.add([1] * 30, PARAMS), engine.add([2] * 3, PARAMS)
    last = ended(engine, [long, short])
    assert isinstance(last[long].error, OutOfMemory)
    assert (long.finish_reason, short.finish_reason, len(short.generated)) == ("abort", "length", 12)
    assert idle(engine)


def host_memory_ends() -> RuntimeError:
    """The error of torch for host memory."""
    with pytest.raises(RuntimeError) as full:
        torch.empty(1 << 60, dtype=torch.uint8)
    return full.value


ENDS = {
    "device": torch.OutOfMemoryError,
    "python": MemoryError,
    "torch": host_memory_ends,
    "graphs": lambda: RuntimeError("CUDA error: out of memory"),
    "Triton": lambda: RuntimeError("Triton Error [CUDA]: out of memory"),
    "products": lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_every_kind_of_out_of_memory_error_is_recognised(kind: str) -> None:
    assert memory_ended(ENDS[kind]())
    assert not memory_ended(RuntimeError("shapes do not fit"))


class NarrowModel(TableModel):
    """A forward over more than 3 rows runs out of memory."""

    kind = "device"
    failed = 0

    def score(self, step, cache, taps=()) -> Scores:
        if len(step.tokens) > 3:
            self.failed += 1
            raise ENDS[self.kind]()
        return super().score(step, cache, taps)


@pytest.mark.parametrize("kind", ENDS)
def test_drafts_that_find_no_memory_are_dropped_and_retried_ever_more_rarely(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_EASED_STEPS", 8)
    params, model = PARAMS.model_copy(update={"max_tokens": 80}), NarrowModel(5)
    model.kind = kind
    alone = engine_of(TableModel(5))
    (wanted,) = ended(alone, [alone.add([1, 2, 3], params)])
    engine = engine_of(model, coupled(model, depth=4))
    sequence = engine.add([1, 2, 3], params)
    assert ended(engine, [sequence])[sequence].error is None
    assert sequence.generated == wanted.generated
    assert 1 < model.failed < 6
    assert idle(engine)


def test_a_draft_s_own_cache_that_is_full_does_not_make_the_target_s_as_small(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = TableModel(5), [[at, *[1, 2, 3] * 10] for at in range(2)]
    alone, drafter = engine_of(model), coupled(model)
    wanted = [one.generated for one in ended(alone, [alone.add(prompt, PARAMS) for prompt in prompts])]
    engine = engine_of(model, drafter, Limits(batch=4, chunk=64, cache_tokens=10_000, shortest_prefix=500))

    def full(step: Step) -> None:
        raise OutOfPages(1, 0, 16)

    monkeypatch.setattr(drafter._cache, "stage", full)
    sequences = [engine.add(prompt, PARAMS) for prompt in prompts]
    assert engine.step() == []
    assert engine.scheduler.limits.cache_tokens > 50
    last = ended(engine, sequences)
    assert all(one.error is None for one in last.values())
    assert [one.generated for one in sequences] == wanted


@pytest.mark.parametrize("kind", ENDS)
def test_where_memory_ends_once_an_answer_has_ended_nobody_is_given_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TableModel(6))
    sequence, policy = engine.add([1, 2], PARAMS.model_copy(update={"max_tokens": 1})), engine.speculative.policy

    def full(*_: object) -> None:
        monkeypatch.undo()
        raise ENDS[kind]()

    monkeypatch.setattr(policy, "observe", full)
    assert engine.step() == []
    (progress,) = engine.step()
    assert (progress.sequence, progress.finished, progress.error) == (sequence, True, None)
    assert sequence.finish_reason == "length"
    assert idle(engine)


@pytest.mark.parametrize("owner", ["cache", "drafter"])
@pytest.mark.parametrize("holding", ["ended", "in flight", "ended beside another"])
def test_a_request_that_cannot_be_admitted_for_lack_of_memory_waits_and_is_served(
    holding: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is never memory to copy a prefix, so in the end it is read again or taken over. holding: the state of the request
    whose cache holds the prefix."""
    emptied = watched_empty_cache(monkeypatch)
    model, prompt = TableModel(6), [n * n % 5 for n in range(30)]
    texts = [prompt, [4, 4], [*prompt[:20], 4]]
    wanted = []
    for text in texts:
        alone = engine_of(model)
        (sequence,) = ended(alone, [alone.add(text, PARAMS)])
        wanted.append(sequence.generated)
    engine = engine_of(model, drafters(model)[1], Limits(shortest_prefix=4))
    first = engine.add(prompt, PARAMS)
    engine.step() if holding == "in flight" else ended(engine, [first])
    other = engine.add([4, 4], PARAMS)
    if holding == "ended beside another":
        engine.step()
    tried = []

    def fork(key: int, new_key: int, length: int | None = None) -> None:
        tried.append(new_key)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(getattr(engine.speculative, owner), "fork", fork)
    late = engine.add(texts[2], PARAMS)
    last = ended(engine, [other, late])
    assert all(one.error is None for one in last.values())
    assert [one.generated for one in (first, other, late)] == wanted
    assert len(emptied) == len(tried) > 0
    assert len(tried) < 10, "each failure frees some memory"
    assert idle(engine)


def test_a_few_kept_texts_give_way_to_whoever_is_let_in_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TableModel(6), limits=Limits(shortest_prefix=4))
    for n in range(10):
        ended(engine, [engine.add([n % 5, n // 5, *[at * at % 5 for at in range(30)]], PARAMS)])
    kept, fork, tried = engine.prefixes.kept_tokens, engine.speculative.cache.fork, []

    def once(key: int, new_key: int, length: int | None = None) -> None:
        tried.append(new_key)
        if len(tried) == 1:
            raise torch.OutOfMemoryError
        fork(key, new_key, length)

    monkeypatch.setattr(engine.speculative.cache, "fork", once)
    late = engine.add([4, 1, *[at * at % 5 for at in range(20)], 4], PARAMS)
    assert engine.step() == []
    assert (engine.scheduler.waiting, engine.scheduler.running) == ([late], [])
    assert kept // 2 < engine.prefixes.kept_tokens < kept
    engine.step()
    assert late.cached_tokens == 22
    assert ended(engine, [late])[late].error is None


def test_where_nothing_is_held_that_could_make_room_the_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TableModel(6))

    def begin(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine.prefixes, "begin", begin)
    engine.add([1, 2], PARAMS)
    with pytest.raises(torch.OutOfMemoryError):
        engine.step()


class PassinglyShortModel(TableModel):
    """Runs out of memory in the forward after `short` is set."""

    short = False

    def score(self, step, cache, taps=()) -> Scores:
        if self.short:
            self.short = False
            raise torch.OutOfMemoryError
        return super().score(step, cache, taps)


def test_a_passing_memory_shortage_lowers_the_cache_limit_only_for_a_while() -> None:
    model, long = PassinglyShortModel(6), PARAMS.model_copy(update={"max_tokens": 2_500})
    engine = engine_of(model, limits=Limits(batch=8, chunk=64, cache_tokens=65_536))
    two = [engine.add([n, 1, 2, 3], long) for n in range(2)]
    engine.step()
    model.short = True
    assert engine.step() == []
    assert engine.scheduler.limits.cache_tokens < 20, "the cache held hardly anything at that time"
    for _ in range(300):
        engine.step()
    eight = [engine.add([n, 3, 2, 1], PARAMS) for n in range(5)]
    engine.step()
    assert set(engine.scheduler.running) == {*two, *eight}
    while engine.has_work:
        engine.step()
    assert engine.scheduler.limits.cache_tokens == 65_536


def test_the_cache_limit_is_raised_ever_more_rarely_on_a_device_that_stays_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_EASED_STEPS", 8)
    engine = engine_of(CrampedModel(5), limits=Limits(batch=4, chunk=64, cache_tokens=10_000, shortest_prefix=500))
    failed, bound = list[int](), engine.scheduler.bound
    monkeypatch.setattr(engine.scheduler, "bound", lambda slots=None, **how: (failed.append(step), bound(slots, **how))[1])
    for step in range(3_000):
        while len(engine.scheduler.waiting) < 4:
            engine.add([step % 4, *[1, 2, 3] * 4], PARAMS)
        engine.step()
    assert any(step > 20 for step in failed), "the limit is raised again"
    assert sum(step > 20 for step in failed) < 20
    assert sum(step > 1_000 for step in failed) < 5


def test_when_memory_is_short_there_is_room_for_the_longest_text_in_flight() -> None:
    model = PassinglyShortModel(6)
    engine = engine_of(model, limits=Limits(batch=8, chunk=200, cache_tokens=65_536))
    long, short = engine.add([1, 2] * 50, PARAMS), engine.add([3], PARAMS)
    engine.step()
    model.short = True
    assert engine.step() == []
    assert engine.scheduler.limits.cache_tokens == len(long.tokens)
    engine.step()
    assert (engine.scheduler.running, engine.scheduler.waiting) == ([long], [short])
