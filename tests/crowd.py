"""Random requests to one engine on fakes: added, aborted, preempted, with shared prefixes.

Each must end once, with the text it has when served alone, and leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from random import Random

from fakes import SCRIPTED, DenseTableCache, FakeTokenizer, RecordingCache, TableModel, coupled
from paceline.drafters.base import Drafter
from paceline.drafters.merge import MergedDrafter
from paceline.drafters.ngram import NgramDrafter, Options as NgramOptions
from paceline.engine.scheduler import Limits
from paceline.models.base import Scores
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Step
from serving import engine_of, wanted


class WatchedModel(TableModel):
    """Records every step."""

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


@dataclass
class Life:
    """The history of one request."""

    sequence: Sequence
    shown: list[str] = field(default_factory=list)
    ends: int = 0
    aborted: bool = False


class Crowd:
    """One engine under random operations. chance: the random source of every decision."""

    def __init__(self, kind: str, limits: Limits, chance: Random) -> None:
        self.chance = chance
        cache = chance.choice([RecordingCache, RecordingCache, DenseTableCache])
        seed = chance.randrange(1000)
        self.model = WatchedModel(vocab_size=6, eos=(5,), context_length=70, sharpness=1.5, seed=seed, cache=cache)
        self.tokenizer = FakeTokenizer([*(bytes([97 + token]) for token in range(5)), b""], special=(5,))
        self.limits = replace(limits, shortest_prefix=chance.choice([1, 2, 4]))
        self.engine = engine_of(self.model, drafter_of(kind, self.model), self.limits, self.tokenizer)
        self.lives: dict[int, Life] = {}
        self.chunked = False
        """Whether a prompt was ever read in chunks beside sequences that decode."""

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

    def finish(self) -> None:
        """Serve the remaining requests, within a bounded number of steps, and check every request."""
        left = [life.sequence for life in self.lives.values() if life.sequence.finish_reason is None]
        # the first request in the queue is never held up, so each ends within the steps it takes alone, after those before it;
        # work done for one may be lost once, when a more urgent one is admitted
        bound = 2 * sum(-(-(len(s.prompt) + s.params.max_tokens) // self.limits.chunk) + s.params.max_tokens + 1 for s in left)
        taken = 0
        while self.engine.has_work:
            self.step()
            taken += 1
            assert taken <= bound, "a request starves"
        for life in self.lives.values():
            self.check_life(life)
        self.check_idle()

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
        self.admit(prompt, params, tenant, priority)

    def admit(self, prompt: Many[int], params: SamplingParams, tenant: str, priority: int) -> None:
        sequence = self.engine.add(prompt, params, tenant=tenant, priority=priority)
        self.lives[sequence.key] = Life(sequence)

    def abort(self) -> None:
        life = self.lives[self.chance.choice(list(self.lives)[-12:])]
        ends = life.sequence.finish_reason is None
        life.aborted |= ends
        self.engine.abort(life.sequence)
        assert not self.engine.prefixes.runs(life.sequence)

    def step(self) -> None:
        self.model.steps.clear()
        for progress in self.engine.step():
            life = self.lives[progress.sequence.key]
            assert not life.aborted
            assert not life.ends
            life.shown.append(progress.text)
            life.ends += progress.finished
        self.check_step()

    def check_step(self) -> None:
        engine, cache = self.engine, self.engine.speculative.cache
        assert len(engine.scheduler.running) <= self.limits.batch
        assert engine.prefixes.kept_tokens == sum(cache.length(key) for key in engine.prefixes._ended)
        if isinstance(cache, RecordingCache):
            assert cache.peak <= self.limits.cache_tokens
            for key, length in cache.lengths.items():
                committed = self.lives[key].sequence.tokens[:length]
                assert cache.slots[key][:length] == list(zip(committed, range(length), strict=True))
        for step in self.model.steps:
            prompts = [segment for segment in step.segments if segment.chain > 1 or segment.tree is None]
            self.chunked |= any(one.tree is None for one in step.segments) and any(one.tree for one in step.segments)
            assert sum(segment.chain for segment in prompts) <= self.limits.chunk
            assert 0 < len(step.segments) <= self.limits.batch
            assert all(segment.rows for segment in step.segments)
            drafted = sum(segment.rows - segment.chain for segment in step.segments)
            assert drafted <= engine.speculative.drafter.budget.nodes * len(step.segments)

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
        """No state of any request is left behind."""
        engine, drafter = self.engine, self.engine.speculative.drafter
        assert not engine.scheduler.waiting
        assert not engine.scheduler.running
        assert not engine.scheduler._queues
        assert not engine.scheduler._fed
        assert not engine.prefixes._awaited
        assert not engine.stops._streams
        engine.forget()
        assert not engine.prefixes.kept_tokens
        assert not engine.prefixes._trees
        assert engine.speculative.cache.held_bytes == 0
        for part in getattr(drafter, "parts", (drafter,)):
            assert not getattr(part, "_cached", None)
            assert not getattr(part, "_indices", None)
            assert part.sequence_bytes == 0
