"""Many requests over time: whatever is added, aborted and preempted, each ends once, with the text it has alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from fakes import (
    SCRIPTED,
    DenseTableCache,
    FakeTokenizer,
    MixedDrafter,
    RecordingCache,
    TableModel,
    coupled,
)
from paceline.drafters.base import Drafter
from paceline.drafters.merge import MergedDrafter
from paceline.drafters.ngram import NgramDrafter, Options as NgramOptions
from paceline.engine.engine import RequestError
from paceline.engine.scheduler import Limits
from paceline.models.base import Scores
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Step
from serving import engine_of, served, wanted

OPERATIONS = 1_700
"""Per case below; 12 cases make 20,000 operations a run, ten times as many under the marker `full`."""


class WatchedModel(TableModel):
    """Notes the shape of every step."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.steps: list[Step] = []

    def score(self, step: Step, cache, taps=()) -> Scores:
        self.steps.append(step)
        return super().score(step, cache, taps)


def drafter_of(kind: str, model: TableModel) -> Drafter | None:
    if kind == "none":
        return None
    if kind == "ngram":
        return NgramDrafter(NgramOptions(max=3, min=1))
    if kind == "model":
        return coupled(model, depth=3, width=2)
    if kind == "merged":
        return MergedDrafter([NgramDrafter(NgramOptions(max=2, min=1, depth=3)), coupled(model)])
    return next(drafter for drafter in SCRIPTED if drafter.__name__ == kind)(model)


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


@dataclass
class Life:
    """What became of one request."""

    sequence: Sequence
    shown: list[str] = field(default_factory=list)
    ends: int = 0
    aborted: bool = False


class Fuzz:
    """One engine under random operations."""

    def __init__(self, kind: str, limits: Limits, seed: int) -> None:
        self.chance = Random(seed)
        cache = self.chance.choice([RecordingCache, RecordingCache, DenseTableCache])
        self.model = WatchedModel(vocab_size=6, eos=(5,), context_length=70, sharpness=1.5, seed=seed, cache=cache)
        self.tokenizer = FakeTokenizer([*(bytes([97 + token]) for token in range(5)), b""], special=(5,))
        self.limits = replace(limits, shortest_prefix=self.chance.choice([1, 2, 4]))
        self.engine = engine_of(self.model, drafter_of(kind, self.model), self.limits, self.tokenizer)
        self.lives: dict[int, Life] = {}

    def run(self, operations: int) -> None:
        for _ in range(operations):
            draw = self.chance.random()
            if draw < 0.12 and len(self.engine.scheduler.waiting) < 6:
                self.add()
            elif draw < 0.14 and self.lives:
                self.abort()
            elif draw < 0.142:
                self.engine.forget()
            else:
                self.step()
        left = [life.sequence for life in self.lives.values() if life.sequence.finish_reason is None]
        # the first of all is never held up, so each request ends within the steps it would take alone, after those before it;
        # what is done for one may be lost once, when a more urgent one is let in
        bound = 2 * sum(-(-(len(s.prompt) + s.params.max_tokens) // self.limits.chunk) + s.params.max_tokens + 1 for s in left)
        taken = 0
        while self.engine.has_work:
            self.step()
            taken += 1
            assert taken <= bound, "a request starves"

    def add(self) -> None:
        chance = self.chance
        size = chance.randint(1, self.engine.longest - 1 if chance.random() < 0.2 else 12)
        before = chance.choice(list(self.lives.values())[-6:]).sequence.tokens if self.lives and chance.random() < 0.7 else []
        shared = before[: chance.randint(0, size)]
        prompt = (*shared, *(chance.randrange(5) for _ in range(size - len(shared))))
        params = SamplingParams(
            max_tokens=chance.randint(1, 14),
            temperature=chance.choice([0.0, 0.0, 0.9]),
            seed=chance.randrange(1000),
            ignore_eos=chance.random() < 0.5,
            min_tokens=chance.choice([0, 0, 4]),
            repetition_penalty=chance.choice([1.0, 1.2]),
            stop=chance.choice([(), (), ("ab",), ("cc", "dad")]),
        )
        tenant, priority = chance.choice(["a", "a", "b"]), chance.choice([0, 0, 0, 1, -1])
        sequence = self.engine.add(prompt, params, tenant=tenant, priority=priority)
        self.lives[sequence.key] = Life(sequence)

    def abort(self) -> None:
        life = self.lives[self.chance.choice(list(self.lives))]
        life.aborted |= life.sequence.finish_reason is None
        self.engine.abort(life.sequence)

    def step(self) -> None:
        for progress in self.engine.step():
            life = self.lives[progress.sequence.key]
            assert not life.aborted
            assert not life.ends
            life.shown.append(progress.text)
            life.ends += progress.finished
        scheduler, cache = self.engine.scheduler, self.engine.speculative.cache
        assert len(scheduler.running) <= self.limits.batch
        if isinstance(cache, RecordingCache):
            assert cache.peak <= self.limits.cache_tokens
            for key, length in cache.lengths.items():
                committed = self.lives[key].sequence.tokens[:length]
                assert cache.slots[key][:length] == list(zip(committed, range(length), strict=True))

    def check(self) -> None:
        assert sum(len(step.segments) > 0 for step in self.model.steps) == len(self.model.steps)
        for step in self.model.steps:
            prompts = [segment for segment in step.segments if segment.chain > 1 or segment.tree is None]
            assert sum(segment.chain for segment in prompts) <= self.limits.chunk
            assert len(step.segments) <= self.limits.batch
            assert all(segment.rows for segment in step.segments)
            drafted = sum(segment.rows - segment.chain for segment in step.segments)
            assert drafted <= self.engine.speculative.drafter.budget.nodes * len(step.segments)
        for life in self.lives.values():
            self.check_life(life)
        self.check_idle()

    def check_life(self, life: Life) -> None:
        sequence = life.sequence
        answer = wanted(self.model, self.tokenizer, sequence.prompt, sequence.params, sequence.seed, self.engine.longest)
        for view in life.shown:
            assert answer.text.startswith(view)
        assert life.shown == sorted(life.shown, key=len)
        if life.aborted:
            assert sequence.finish_reason == "abort"
            assert sequence.generated == answer.tokens[: len(sequence.generated)]
        else:
            assert life.ends == 1
            assert (sequence.generated, life.shown[-1], sequence.finish_reason) == (
                answer.tokens,
                answer.text,
                answer.finish,
            )

    def check_idle(self) -> None:
        """Nothing is left behind."""
        engine, drafter = self.engine, self.engine.speculative.drafter
        assert not engine.scheduler.waiting
        assert not engine.scheduler.running
        assert not engine.stops._streams
        engine.forget()
        assert not engine.prefixes.kept_tokens
        assert not engine.prefixes._trees
        assert engine.speculative.cache.held_bytes == 0
        for part in getattr(drafter, "parts", (drafter,)):
            assert not getattr(part, "_cached", None)
            assert not getattr(part, "_indices", None)
            assert part.held_bytes == 0


@pytest.mark.parametrize(("kind", "limits"), CASES)
def test_every_request_ends_once_with_the_text_it_has_alone(kind: str, limits: Limits) -> None:
    fuzz = Fuzz(kind, limits, seed=CASES.index((kind, limits)))
    fuzz.run(OPERATIONS)
    fuzz.check()
    assert sum(life.ends for life in fuzz.lives.values()) > 20
    assert sum(life.sequence.cached_tokens for life in fuzz.lives.values()) > 0
    if limits.cache_tokens <= 60 and limits.batch > 2:
        assert fuzz.engine.scheduler.preemptions
    if limits.batch > 2 and limits.chunk < 64:
        chunked = [s for s in fuzz.model.steps if any(g.tree is None for g in s.segments) and any(g.tree for g in s.segments)]
        assert chunked, "no prompt was chunked beside sequences that decode"


@pytest.mark.full
@pytest.mark.parametrize("round_", range(10))
@pytest.mark.parametrize(("kind", "limits"), CASES)
def test_every_request_ends_once_with_the_text_it_has_alone_at_length(kind: str, limits: Limits, round_: int) -> None:
    fuzz = Fuzz(kind, limits, seed=1000 * (round_ + 1) + CASES.index((kind, limits)))
    fuzz.run(OPERATIONS)
    fuzz.check()


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


def test_no_draft_is_asked_for_past_the_last_token_that_may_come() -> None:
    model = WatchedModel(vocab_size=5, context_length=30)
    for params, prompt in [(SamplingParams(max_tokens=5), 3), (SamplingParams(max_tokens=500), 20)]:
        model.steps.clear()
        engine = engine_of(model, MixedDrafter(model, depth=6))
        ((sequence, _),) = served(engine, [([1] * prompt, params)])
        last = min(prompt + params.max_tokens, 30) - 1
        assert len(sequence.tokens) == last + 1
        # the last token is chosen, never fed
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


@pytest.mark.parametrize("name", ["batch", "chunk", "cache_tokens"])
def test_limits_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Limits(**{name: 0})
