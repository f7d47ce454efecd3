"""Shared prefixes: which cached texts a request finds, when it waits for another, and which texts are kept or evicted."""

from __future__ import annotations

from collections.abc import Sequence as Many
from types import SimpleNamespace

import pytest

from crowd import WatchedModel, drafter_of
from fakes import ChainDrafter, RecordingCache, TableModel, coupled
from paceline.budget import Budget
from paceline.drafters.base import Drafter
from paceline.drafters.merge import MergedDrafter
from paceline.drafters.model import ModelDrafter
from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.engine.prefix import Prefixes
from paceline.engine.scheduler import Limits
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from serving import engine_of
from test_radix import spans

PROMPT = [n * n % 5 for n in range(30)]
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


def sharing(model: TableModel | None = None, drafter: Drafter | None = None, **limits: int) -> Engine:
    return engine_of(model or TableModel(5), drafter, Limits(**{"shortest_prefix": 4, **limits}))


def ended(engine: Engine, prompt: Many[int], params: SamplingParams = SHORT, **options) -> Sequence:
    """Serves a request to its end, together with others in flight."""
    sequence = engine.add(prompt, params, **options)
    while sequence.finish_reason is None:
        engine.step()
    return sequence


def drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def fed(model: WatchedModel) -> int:
    """The number of committed tokens read by forwards."""
    return sum(segment.chain for step in model.steps for segment in step.segments)


def test_the_second_of_two_equal_prompts_reads_its_last_token_only() -> None:
    model = WatchedModel(vocab_size=5)
    engine = sharing(model)
    first = ended(engine, PROMPT)
    model.steps.clear()
    second = ended(engine, PROMPT)
    assert (first.cached_tokens, second.cached_tokens) == (0, 29)
    assert fed(model) == 3
    assert second.generated == first.generated


def test_of_several_texts_the_longest_beginning_is_found() -> None:
    engine = sharing()
    for length in (6, 20, 11):
        ended(engine, [*PROMPT[:length], 4, 4])
    assert PROMPT[20] != 4
    assert ended(engine, PROMPT).cached_tokens == 20
    assert ended(engine, [4, *PROMPT]).cached_tokens == 0
    assert ended(engine, [*PROMPT[:3], 3, 3, 3]).cached_tokens == 0, "three tokens in common are too few"


def test_nothing_is_shared_between_tenants() -> None:
    """The tokens are equal, and so are all hashes of them: only the tenant differs."""
    engine = sharing()
    ended(engine, PROMPT, tenant="a")
    running = engine.add(PROMPT, LONG, tenant="a")
    engine.step()
    assert running.cached_tokens == 29
    assert ended(engine, PROMPT, tenant="b").cached_tokens == 0
    assert ended(engine, PROMPT).cached_tokens == 0
    assert ended(engine, PROMPT, tenant="b").cached_tokens == 29


def test_log_probabilities_of_a_prompt_are_computed_not_shared() -> None:
    engine = sharing()
    ended(engine, PROMPT)
    telling = engine.add(PROMPT, SHORT.model_copy(update={"prompt_logprobs": 1}))
    (work,) = engine.scheduler.pick(Budget(0, 0))
    assert (work.sequence, work.start, telling.cached_tokens) == (telling, 0, 0)
    engine.abort(telling)
    assert ended(engine, PROMPT).cached_tokens == 29


@pytest.mark.parametrize("chunk", [4, 64])
def test_choices_of_one_prompt_read_it_once(chunk: int) -> None:
    model = WatchedModel(vocab_size=5)
    engine = sharing(model, chunk=chunk)
    choices = [engine.add(PROMPT, SamplingParams(max_tokens=2, temperature=1.0, seed=n)) for n in range(5)]
    drain(engine)
    assert [choice.cached_tokens for choice in choices] == [0, 29, 29, 29, 29]
    assert fed(model) == sum(30 - choice.cached_tokens + len(choice.generated) - 1 for choice in choices)


def test_a_request_stops_waiting_for_a_shared_prompt_whose_reader_was_aborted() -> None:
    engine = sharing(chunk=4)
    first, second = engine.add(PROMPT, LONG), engine.add(PROMPT, LONG)
    for _ in range(3):
        engine.step()
    assert engine.scheduler.waiting == [second]
    engine.abort(first)
    engine.step()
    assert engine.scheduler.running == [second]
    assert second.cached_tokens == 12, "it continues from the part already read"


@pytest.mark.parametrize("steps", [2, 12])
def test_an_aborted_request_asked_again_finds_what_was_read_of_it(steps: int) -> None:
    """Aborted in the middle of the prompt, and of the answer."""
    model = WatchedModel(vocab_size=5)
    engine = sharing(model, drafter_of("merged", model), chunk=4)
    stopped = engine.add(PROMPT, LONG)
    for _ in range(steps):
        engine.step()
    read = engine.speculative.cache.length(stopped.key)
    engine.abort(stopped)
    assert not engine.has_work
    assert sum(map(len, spans(engine.prefixes._trees[""]))) == read, "the tree holds no more than that"
    again = ended(engine, PROMPT, LONG)
    assert again.cached_tokens == min(read, 29) > 0
    assert again.generated == ended(sharing(TableModel(5)), PROMPT, LONG).generated


def test_a_conversation_that_was_stopped_goes_on_from_all_that_was_said() -> None:
    engine = sharing()
    first = ended(engine, PROMPT, LONG)
    told = [*first.tokens, 1, 2, 3]
    stopped = engine.add(told, LONG)
    for _ in range(3):
        engine.step()
    engine.abort(stopped)
    assert ended(engine, [*told, 4]).cached_tokens >= len(first.tokens)


def test_a_more_urgent_request_waits_for_no_other() -> None:
    engine = sharing(chunk=4)
    engine.add(PROMPT, LONG)
    engine.step()
    urgent, equal = engine.add(PROMPT, LONG, priority=-1), engine.add(PROMPT, LONG)
    engine.step()
    assert urgent in engine.scheduler.running
    assert equal in engine.scheduler.waiting


def test_a_request_that_waits_for_a_shared_prompt_does_not_block_others() -> None:
    engine = sharing(chunk=4)
    engine.add(PROMPT, LONG)
    engine.add(PROMPT, LONG)
    other = engine.add([3, 3, 3], LONG)
    engine.step()
    assert other in engine.scheduler.running


def copies(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that collects the lengths of copied texts from now on."""
    seen, cache = [], engine.speculative.cache
    fork = cache.fork

    def watched(key: int, new_key: int, length: int | None = None) -> None:
        fork(key, new_key, length)
        seen.append(cache.length(new_key))

    monkeypatch.setattr(cache, "fork", watched)
    monkeypatch.setattr(cache, "move", lambda key, new_key: (fork(key, new_key), cache.release(key)))
    return seen


def test_a_conversation_takes_over_what_drafters_hold_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TableModel(5)
    drafter = coupled(model)
    engine = sharing(model, drafter)
    turn = ended(engine, PROMPT, LONG)
    moved, move = [], drafter._cache.move
    monkeypatch.setattr(drafter._cache, "move", lambda key, new_key: (moved.append((key, new_key)), move(key, new_key)))
    following = ended(engine, [*turn.tokens, 1, 2])
    assert moved == [(turn.key, following.key)]
    assert following.generated == ended(sharing(TableModel(5)), [*turn.tokens, 1, 2]).generated


def test_a_conversation_takes_over_what_its_last_turn_left(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sharing()
    copied = copies(engine, monkeypatch)
    turn = ended(engine, PROMPT)
    for _ in range(4):
        held = engine.speculative.cache.length(turn.key)
        turn = ended(engine, [*turn.tokens, 2, 1])
        assert turn.cached_tokens == held
    assert copied == []
    assert engine.prefixes.kept_tokens == len(turn.tokens) - 1


def test_a_text_with_much_behind_what_is_shared_is_copied_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sharing()
    copied = copies(engine, monkeypatch)
    first = ended(engine, PROMPT, LONG)
    ended(engine, [*PROMPT, 4, 4])
    assert copied == [30]
    assert engine.speculative.cache.length(first.key) == len(first.tokens) - 1


def test_without_room_for_both_a_text_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sharing(cache_tokens=100)
    copied = copies(engine, monkeypatch)
    first = ended(engine, PROMPT, LONG)
    assert ended(engine, [*PROMPT, 4, 4]).cached_tokens == 30
    assert copied == []
    assert engine.speculative.cache.length(first.key) == 0


def test_equal_answers_are_kept_once() -> None:
    engine = sharing()
    answers = [ended(engine, PROMPT, LONG) for _ in range(5)]
    assert engine.prefixes.kept_tokens == len(answers[-1].tokens) - 1


def test_kept_texts_are_evicted_least_recently_used_first_before_any_preemption() -> None:
    engine = sharing(cache_tokens=120)
    old, used, new = (ended(engine, [n, *PROMPT]) for n in (1, 2, 3))
    held = engine.speculative.cache.length
    ended(engine, [2, *PROMPT], SHORT)
    assert held(old.key)
    engine.add([4, *PROMPT], LONG)
    engine.step()
    drain(engine)
    assert not engine.scheduler.preemptions
    assert held(old.key) == 0
    assert held(used.key) == 0, "its text is now in the cache of the request that took it over"
    assert engine.prefixes.kept_tokens <= 120
    assert held(new.key) == 0 or ended(engine, [3, *PROMPT]).cached_tokens == 30


def test_a_text_that_was_copied_from_is_kept_longer_than_one_that_came_after_it() -> None:
    engine = sharing(cache_tokens=240)
    used, other = (ended(engine, [n, *PROMPT], LONG) for n in (1, 2))
    copy = ended(engine, [1, *PROMPT, 4, 4])
    engine.prefixes.make_room(engine.prefixes.kept_tokens - 1)
    held = engine.speculative.cache.length
    assert [held(one.key) > 0 for one in (other, used, copy)] == [False, True, True]


def test_an_aborted_text_gives_back_the_room_reserved_for_its_unread_rest() -> None:
    engine = LLM(draft="none", prefill_chunk=64).engine
    cache, long = engine.speculative.cache, engine.add(list(range(5, 255)), LONG)
    engine.step()
    reserved = cache.held_bytes
    engine.abort(long)
    assert cache.length(long.key) == 64
    assert cache.held_bytes == reserved / 2, "128 slots instead of 256"


def test_caches_hold_nothing_after_abort_all_and_forget() -> None:
    model = TableModel(5)
    engine = sharing(model, drafter_of("merged", model))
    for n in range(3):
        ended(engine, [n, *PROMPT], LONG)
    engine.add(PROMPT, LONG)
    engine.step()
    engine.abort_all()
    engine.forget()
    assert engine.speculative.cache.held_bytes == 0
    assert engine.speculative.drafter.sequence_bytes == 0
    assert not engine.prefixes._trees
    assert ended(engine, [1, *PROMPT]).cached_tokens == 0


def test_a_text_too_short_to_share_is_not_kept() -> None:
    engine = sharing(shortest_prefix=64)
    ended(engine, PROMPT)
    assert engine.speculative.cache.held_bytes == 0


def test_cached_tokens_are_counted_once_even_after_preemption() -> None:
    engine = sharing(cache_tokens=90)
    ended(engine, PROMPT)
    runners = [engine.add([*PROMPT, n, n], LONG) for n in range(2)]
    drain(engine)
    assert engine.scheduler.preemptions
    assert [runner.cached_tokens for runner in runners] == [30, 30]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["none", "ngram", "model", "merged", "TreeDrafter"])
def test_a_conversation_is_what_it_would_be_without_a_cache(kind: str, temperature: float) -> None:
    model = TableModel(5)
    engine = sharing(model, drafter_of(kind, model))
    params = SamplingParams(max_tokens=9, temperature=temperature, seed=3)
    prompt = [1, 2, 3, 4, 0]
    for turn in range(6):
        shared = ended(engine, prompt, params)
        alone = ended(sharing(model, drafter_of(kind, model)), prompt, params)
        assert not turn or shared.cached_tokens
        assert (shared.generated, shared.finish_reason) == (alone.generated, alone.finish_reason)
        # every other turn leaves out the end of the answer
        prompt = [*shared.tokens[: len(shared.tokens) - 3 * (turn % 2)], 4, turn % 5]


def test_a_drafters_shared_cache_holds_committed_tokens_only() -> None:
    model = TableModel(5)
    drafter = coupled(model, depth=4, disturbed=3.0)
    engine = sharing(model, MergedDrafter([ChainDrafter(model), drafter]))
    params = SamplingParams(max_tokens=9, temperature=1.0)
    engine.add(PROMPT, params.model_copy(update={"max_tokens": 60}))
    for turn in range(8):
        engine.step()
        # one request in flight, with a draft in its cache, and one that ended
        sequence = engine.add([*PROMPT, turn % 3], params)
        engine.step()
        assert sequence.cached_tokens
        assert clean(drafter, sequence)
        while sequence.finish_reason is None:
            engine.step()


def clean(drafter: ModelDrafter, sequence: Sequence) -> bool:
    """The drafter's cached tokens, without its last draft, are a prefix of the sequence."""
    cache = drafter._cache
    assert isinstance(cache, RecordingCache)
    held = cache.slots.get(sequence.key, [])[: cache.length(sequence.key) - len(drafter._cached.get(sequence.key, []))]
    return [token for token, _ in held] == sequence.tokens[: len(held)]


def test_no_more_bytes_are_kept_than_there_is_room_for() -> None:
    engine = LLM(draft="none").engine
    prompt, params = list(range(5, 205)), SamplingParams(max_tokens=2)
    engine.add(prompt, params)
    while engine.has_work:
        engine.step()
    one = engine.speculative.cache.held_bytes
    assert one > 0
    engine.forget()
    engine.prefixes = type(engine.prefixes)(engine.speculative, 64, int(2.5 * one))
    engine.scheduler._prefixes = engine.prefixes
    asked = []
    for first in range(6):
        asked.append(ended(engine, [first, *prompt[1:]], params))
        assert engine.speculative.cache.held_bytes <= 2.5 * one
    assert engine.speculative.cache.held_bytes == 2 * one
    held = [engine.speculative.cache.length(each.key) > 0 for each in asked]
    assert held == [False, False, False, False, True, True], "the oldest were evicted"


def test_bytes_that_drafters_hold_count_towards_the_limit_of_kept_texts() -> None:
    engine = LLM(draft="model").engine
    target, drafter = engine.speculative.cache, engine.speculative.drafter
    for first in range(3):
        engine.add([first, *range(5, 204)], SamplingParams(max_tokens=2))
        while engine.has_work:
            engine.step()
        if first == 0:
            one = target.held_bytes + drafter.sequence_bytes
            assert drafter.sequence_bytes > 0
            engine.prefixes._most_bytes = one + target.held_bytes
    assert target.held_bytes + drafter.sequence_bytes == one


def test_drafters_bytes_are_summed_once_per_ended_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, counted = LLM(draft="ngram").engine, []

    class Watched(type(engine.speculative.drafter)):
        @property
        def sequence_bytes(self) -> int:
            counted.append(True)
            return super().sequence_bytes

    engine.speculative.drafter.__class__ = Watched
    for first in range(6):
        engine.add([first, *range(5, 204)], SamplingParams(max_tokens=2))
        while engine.has_work:
            engine.step()
        if first == 2:
            # three texts and a half
            engine.prefixes._most_bytes = engine.speculative.cache.held_bytes * 7 // 6
    assert len(engine.prefixes._ended) == 3
    assert len(counted) == 6


def test_a_preempted_request_counts_no_tokens_of_its_own_answer_as_cached() -> None:
    engine = sharing(TableModel(6, seed=3), cache_tokens=60, batch=2)
    _, second = (engine.add([1, 2, 3, 4, 5] * 2, LONG) for _ in range(2))
    drain(engine)
    assert engine.scheduler.preemptions
    assert second.cached_tokens < 10


class Store:
    """A cache, or a drafter, of ten bytes per token that says what it was copied from."""

    def __init__(self) -> None:
        self.held, self.forked = dict[int, int](), list[int]()

    def length(self, key: int) -> int:
        return self.held.get(key, 0)

    def fork(self, key: int, new_key: int, length: int) -> None:
        self.forked.append(key)
        self.held[new_key] = min(self.length(key), length)

    def truncate(self, key: int, length: int) -> None:
        self.held[key] = min(self.length(key), length)

    def settle(self, key: int) -> None: ...

    def shrink(self, key: int) -> None: ...

    @property
    def held_bytes(self) -> int:
        return 10 * sum(self.held.values())

    sequence_bytes = held_bytes


def stored(most_bytes: int, *texts: Many[int]) -> tuple[Prefixes, Store]:
    """Prefixes that keep these texts, as far as there is room, and their cache."""
    cache, drafter = Store(), Store()

    def release(key: int) -> None:
        cache.held.pop(key, None)
        drafter.held.pop(key, None)

    policy = SimpleNamespace(fork=lambda *_: None)
    prefixes = Prefixes(SimpleNamespace(cache=cache, drafter=drafter, policy=policy, release=release), 2, most_bytes)  # pyright: ignore[reportArgumentType]
    for key, text in enumerate(texts):
        one = Sequence(key, tuple(text), SamplingParams(), 0)
        prefixes.begin(one, 999)
        cache.held[key] = drafter.held[key] = len(text)
        prefixes.end(one)
    return prefixes, cache


def test_no_more_texts_are_dropped_than_must_be() -> None:
    prefixes, _ = stored(800, *([key] * 10 for key in range(5)))
    assert prefixes.kept_tokens == 40


def test_of_texts_that_begin_alike_the_shortest_is_copied() -> None:
    """A cache that keeps states copies all of a text."""
    prefixes, cache = stored(10**9, [1, 2, 3, 4, 5, *[6] * 5], [1, 2, 3, 4, 5, *[7] * 40])
    cache.forked.clear()
    prefixes.begin(Sequence(2, (1, 2, 3, 4, 5, 8), SamplingParams(), 0), 999)
    assert cache.forked == [0]
