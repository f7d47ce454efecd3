"""Cascades: `a^b` drafts the same tokens as b alone, in fewer forwards of b, and its inner drafter forgets released requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from fakes import MixedDrafter, ScriptedDrafter, TableModel, WrongDrafter
from paceline.budget import Budget
from paceline.cascade import Cascade, _Shadow
from paceline.compose import build_drafter
from paceline.drafters.base import Drafter, Surroundings
from paceline.drafters.bigram import BigramDrafter, Options as BigramOptions
from paceline.drafters.lookahead import LookaheadDrafter, Options as LookaheadOptions
from paceline.drafters.merge import MergedDrafter
from paceline.drafters.model import ModelDrafter, Options as ModelOptions
from paceline.drafters.ngram import NgramDrafter, Options
from paceline.drafters.recycle import Options as RecycleOptions, RecycleDrafter
from paceline.drafters.reference import Options as ReferenceOptions, ReferenceDrafter
from paceline.drafters.suffix import Options as SuffixOptions, SuffixDrafter
from paceline.drafters.unigram import Options as UnigramOptions, UnigramDrafter
from paceline.growth import Growth
from paceline.lookups.alignment import Alignment
from paceline.lookups.counts import Counts
from paceline.lookups.ngram_pool import NgramPool
from paceline.models.base import LanguageModel, Scores
from paceline.params import Grammar, SamplingParams
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.spec import SpecError
from paceline.stopping import CLASSES, DEEPEST, Stopping
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import caterpillar
from paceline.verifiers.match import Match
from serving import engine_of, served, wanted

PARAMS = [
    SamplingParams(max_tokens=24),
    SamplingParams(max_tokens=24, temperature=1.0, seed=4),
    SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, frequency_penalty=0.7, repetition_penalty=1.2, seed=5),
]
GROWTH = Growth(Proposal.COUPLED, caterpillar(5, 1))


class Counting(TableModel):
    forwards = 0

    def score(self, *arguments: Any, **named: Any) -> Any:
        self.forwards += 1
        return super().score(*arguments, **named)


def models(kind: type[ScriptedDrafter]) -> tuple[Counting, Cascade]:
    alone, inside = Counting(6, seed=3), Counting(6, seed=3)
    return alone, Cascade(inside, kind(inside), Match(), FixedPolicy())


def extended(model: LanguageModel, sequences: list[Sequence], depth: int, cache: Any) -> list[DraftTree]:
    budgets = [Budget(depth, depth)] * len(sequences)
    return model.extend(sequences, budgets, cache, growth=GROWTH, vocab_size=6, source="b")


@pytest.mark.parametrize("kind", [MixedDrafter, WrongDrafter])
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "penalties"])
def test_a_cascade_drafts_the_same_tokens_as_its_model_alone(kind: type[ScriptedDrafter], params: SamplingParams) -> None:
    """Over steps that accept none, some or all of the last draft, for sequences of different lengths in one batch."""
    alone, pair = models(kind)
    one, other = alone.new_cache(), pair.new_cache()
    sequences = [Sequence(key, (1, 2, 3, 4)[: 2 + key], params, seed=20 + key) for key in range(2)]
    for step in range(8):
        wanted_trees = extended(alone, sequences, 5, one)
        trees = extended(pair, sequences, 5, other)
        assert [tree.tokens for tree in trees] == [tree.tokens for tree in wanted_trees]
        assert [tree.kind for tree in trees] == [tree.kind for tree in wanted_trees]
        for sequence, tree in zip(sequences, trees, strict=True):
            right = (step + sequence.key) % 6
            sequence.commit((*tree.tokens[1 : 1 + right], (tree.tokens[1] + 1) % 6), ())
            for cache in (one, other):
                cache.truncate(sequence.key, min(cache.length(sequence.key), len(sequence.tokens) - 2))


def test_drafts_accepted_inside_a_cascade_save_forwards_of_its_model() -> None:
    alone, pair = models(MixedDrafter)
    sequence = Sequence(0, (1, 2, 3), PARAMS[0], 0)
    extended(alone, [sequence], 8, alone.new_cache())
    extended(pair, [sequence], 8, pair.new_cache())
    assert pair._pair.forwards < alone.forwards


@pytest.mark.parametrize(("kind", "width"), [(Proposal.IID, 2), (Proposal.POINT, 1)])
def test_a_cascade_drafts_iid_and_point_trees_as_its_model_alone_does(kind: Proposal, width: int) -> None:
    """IID draws, for a verifier that tests draws, and the likeliest tokens (POINT) of a sampled request."""
    alone, pair = models(MixedDrafter)
    growth = Growth(kind, caterpillar(3, width))
    sequence = Sequence(0, (1, 2, 3), PARAMS[1], 9)
    made = [
        model.extend([sequence], [Budget(6, 3)], model.new_cache(), growth=growth, vocab_size=6, source="b")[0]
        for model in (alone, pair)
    ]
    assert made[0].tokens == made[1].tokens
    assert made[1].kind is kind


def test_a_greedy_request_gets_a_cascades_draft_under_a_rule_that_wants_drawn_tokens() -> None:
    """Nothing is drawn for a greedy request, even under a rule that wants drawn tokens: the cascade drafts it all the same."""
    growth = Growth(Proposal.IID, caterpillar(8, 1))
    found: list[tuple[list[DraftTree], int]] = []
    for params in (PARAMS[0], PARAMS[1]):
        alone, pair = models(MixedDrafter)
        sequences = [Sequence(0, (1, 2, 3), params, 9), Sequence(1, (2, 3), PARAMS[0], 9)]
        trees = [
            model.extend(sequences, [Budget(8, 8)] * 2, model.new_cache(), growth=growth, vocab_size=6, source="b")
            for model in (alone, pair)
        ]
        assert [tree.tokens for tree in trees[0]] == [tree.tokens for tree in trees[1]]
        found.append((trees[1], pair._pair.forwards))
    assert [tree.kind for tree in found[0][0]] == [Proposal.POINT] * 2
    assert [tree.kind for tree in found[1][0]] == [Proposal.IID, Proposal.POINT]
    assert all(0 < forwards < 8 for _, forwards in found)


@pytest.mark.parametrize("kind", [MixedDrafter, WrongDrafter])
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "penalties"])
def test_confidences_are_the_models_own(kind: type[ScriptedDrafter], params: SamplingParams) -> None:
    for seed in range(20):
        one, other = drafted_by_both(kind, Sequence(0, (1, 2, 3), params, seed), Budget(6, 6))
        assert one.tokens == other.tokens
        assert other.confidences == pytest.approx(one.confidences, abs=1e-6)


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "penalties"])
@pytest.mark.parametrize("floor", [0.0, 0.6, 0.9])
def test_a_draft_ends_where_the_models_own_would(params: SamplingParams, floor: float) -> None:
    """A draft ends behind a token below the floor, and where the budget's stopping rule ends it."""
    chances = np.tile(np.linspace(0.1, 0.95, CLASSES, dtype=np.float32), (DEEPEST, 1))
    for stopping in (None, Stopping(chances, 1.0, (0.5, 0.4, 0.35))):
        lengths = set()
        for seed in range(30):
            sequence = Sequence(0, (seed % 6, seed // 6, 3), params, seed)
            one, other = drafted_by_both(MixedDrafter, sequence, Budget(6, 6, floor, stopping))
            assert one.tokens == other.tokens
            lengths.add(len(other))
        assert len(lengths) == 1 if stopping is None and not floor else len(lengths) > 1


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "penalties"])
def test_a_draft_ends_where_its_text_would(params: SamplingParams) -> None:
    lengths = set()
    for seed in range(30):
        sequence = Sequence(0, (seed % 6, seed // 6, 3), params, seed, frozenset({seed % 5}))
        one, other = drafted_by_both(MixedDrafter, sequence, Budget(6, 6))
        assert one.tokens == other.tokens
        assert sequence.stop_ids.isdisjoint(other.tokens[1:-1])
        lengths.add(len(other))
    assert len(lengths) > 1


def drafted_by_both(kind: type[ScriptedDrafter], sequence: Sequence, budget: Budget) -> list[DraftTree]:
    return [
        model.extend([sequence], [budget], model.new_cache(), growth=GROWTH, vocab_size=6, source="b")[0]
        for model in models(kind)
    ]


def test_logits_that_are_not_numbers_end_the_draft() -> None:
    for params in PARAMS:
        pair = pair_with(NgramDrafter(Options()))
        pair._pair.target.table.fill_(torch.nan)  # pyright: ignore[reportAttributeAccessIssue]
        assert len(extended(pair, [Sequence(0, (1, 2, 3), params, 0)], 5, pair.new_cache())[0]) == 1


# the requests that the inner drafter sees


def pair_with(drafter: Drafter) -> Cascade:
    return Cascade(Counting(6, seed=3), drafter, Match(), FixedPolicy())


def test_what_the_inner_drafter_learnt_from_one_tenant_is_not_shown_to_another() -> None:
    inside = RecycleDrafter(RecycleOptions(), 6)
    pair = pair_with(inside)
    cache = pair.new_cache()
    extended(pair, [Sequence(0, (1, 2, 3), PARAMS[0], 0, tenant="one")], 5, cache)
    assert list(inside._tables) == ["one"]
    shown = [inside.propose([Sequence(9, (1, 2, 3), PARAMS[0], 0, tenant=who)], [inside.budget])[0] for who in ("one", "other")]
    assert len(shown[0]) > 1 == len(shown[1])


def test_the_drafter_inside_follows_the_reference_of_the_request() -> None:
    inside = ReferenceDrafter(ReferenceOptions(prompt=False))
    pair = pair_with(inside)
    cache = pair.new_cache()
    plain = Sequence(0, (1, 2, 3), PARAMS[0], 0)
    text = extended(pair, [plain], 5, cache)[0].tokens[1:]
    assert pair._pair.forwards == 5, "the inner drafter has no reference to follow"
    extended(pair, [Sequence(1, (1, 2, 3), PARAMS[0], 0, reference=text)], 5, cache)
    assert pair._pair.forwards < 5 + 5


@pytest.mark.parametrize(("reason", "remembered"), [("stop", True), ("length", True), ("abort", False), (None, False)])
def test_answers_that_ended_are_remembered_inside_until_they_are_forgotten(reason: str | None, remembered: bool) -> None:
    inside = SuffixDrafter(SuffixOptions())
    pair = pair_with(MergedDrafter([inside]))
    cache = pair.new_cache()
    sequence = Sequence(0, (1, 2, 3), PARAMS[0], 0, tenant="one")
    for _ in range(6):
        sequence.commit(extended(pair, [sequence], 5, cache)[0].tokens[1:], ())
    sequence.finish_reason = reason
    cache.release(0)
    assert not pair._requests
    again = Sequence(1, (1, 2, 3, *sequence.generated[:3]), PARAMS[0], 0, tenant="one")
    other = Sequence(2, again.prompt, PARAMS[0], 0, tenant="other")
    assert bool(inside._past) == remembered
    trees = inside.propose([again, other], [inside.budget] * 2)
    assert len(trees[0]) - len(trees[1]) > 0 if remembered else trees[0] == trees[1]
    pair.forget()
    assert not inside._past


def test_bytes_that_the_inner_drafter_holds_are_not_counted_as_sequence_bytes() -> None:
    """Counted, they would make the engine evict one kept text after another without freeing them."""
    model = TableModel(6, seed=3)
    pair = Cascade(model.disturbed(0.8), SuffixDrafter(SuffixOptions()), Match(), FixedPolicy())
    drafter = ModelDrafter(pair, 6, ModelOptions(path="fake", depth=4))
    engine = engine_of(model, drafter)
    served(engine, [([1, 2, 3, 1, 2], params) for params in PARAMS])
    engine.prefixes.make_room(0)
    assert pair._pair.drafter._past
    assert drafter.sequence_bytes == 0


def test_a_whole_engine_on_a_cascade_keeps_the_text() -> None:
    model = TableModel(6, seed=3)
    inner = model.disturbed(0.8)
    pair = Cascade(inner, NgramDrafter(Options(max=2, min=1)), Match(), FixedPolicy())
    drafter = ModelDrafter(pair, 6, ModelOptions(path="fake", depth=4))
    engine = engine_of(model, drafter)
    requests = [([1, 2, 3, 1, 2], params) for params in PARAMS]
    for (prompt, params), (sequence, _) in zip(requests, served(engine, requests), strict=True):
        oracle = wanted(model, engine.tokenizer, prompt, params, sequence.seed, engine.longest)  # pyright: ignore[reportArgumentType]
        assert sequence.generated == oracle.tokens
    assert drafter.sequence_bytes == 0
    assert not pair._seen
    assert not pair._shadows


def test_a_fork_of_a_fork_within_one_step_drafts_what_the_first_fork_does() -> None:
    """A fork that was not used yet is forked again as it is."""
    model = TableModel(6, seed=3)
    pair = Cascade(model.disturbed(0.8), NgramDrafter(Options(max=2, min=1)), Match(), FixedPolicy())
    drafter = ModelDrafter(pair, 6, ModelOptions(path="fake", depth=4))
    first, second, third = (Sequence(key, (1, 2, 3, 1, 2), SamplingParams(), 0) for key in range(3))
    first.commit((3, 1, 2, 3, 1, 2), ())
    drafter.propose([first], [Budget(4, 4)])
    drafter.fork(0, 1, 11)
    drafter.fork(1, 2, 11)
    for sequence in (second, third):
        sequence.commit((4,), ())
    trees = drafter.propose([second, third], [Budget(4, 4)] * 2)
    assert trees[0].tokens == trees[1].tokens
    assert trees[0].tokens[0] == 4


def test_only_a_model_can_be_drafted_for(tmp_path: Path) -> None:
    surroundings = Surroundings(TableModel(6), None, lambda path: (TableModel(6), None))  # pyright: ignore[reportArgumentType]
    with pytest.raises(SpecError, match="'ngram' is none"):
        build_drafter("ngram^ngram", surroundings)


def test_a_draft_costs_no_more_behind_a_long_text() -> None:
    """The request is followed from draft to draft, not copied; its token counts equal those of the generated tokens."""
    model = TableModel(6, seed=3)
    pair = Cascade(model.disturbed(0.8), NgramDrafter(Options(max=2, min=1)), Match(), FixedPolicy())
    engine = engine_of(model, ModelDrafter(pair, 6, ModelOptions(path="fake", depth=4)))
    request = engine.add([1, 2, 3, 1, 2], PARAMS[2])
    shadows = set()
    while request.finish_reason is None:
        engine.step()
        if request.key in pair._shadows:
            shadow = pair._shadows[request.key]
            shadows.add(id(shadow.sequence))
            assert shadow.sequence.tokens[: shadow.committed] == request.tokens[: shadow.committed]
            assert shadow.sequence.generated_counts == Counter(shadow.sequence.generated)
    assert len(shadows) == 1


READERS: dict[str, tuple[Callable[[], Drafter], type, str]] = {
    "unigram": (lambda: UnigramDrafter(UnigramOptions()), Counts, "add"),
    "bigram": (lambda: BigramDrafter(BigramOptions()), Counts, "add"),
    "reference": (lambda: ReferenceDrafter(ReferenceOptions()), Alignment, "_take"),
    "lookahead": (lambda: LookaheadDrafter(LookaheadOptions()), NgramPool, "add"),
}
"""A drafter, and the method by which it reads one token of a text."""


@pytest.mark.parametrize("name", READERS)
def test_the_inner_drafter_reads_no_more_tokens_per_draft_behind_a_long_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts tokens read by the inner drafter, each draft being cut back: no text is read from its beginning again."""
    made, reader, method = READERS[name]
    plain, read = getattr(reader, method), Counter[str]()

    def counted(*arguments: Any) -> Any:
        read[name] += 1
        return plain(*arguments)

    monkeypatch.setattr(reader, method, counted)

    def most(length: int) -> int:
        model = TableModel(6, seed=3, context_length=4096)
        pair = Cascade(model, made(), Match(), FixedPolicy())
        cache, stream = pair.new_cache(), Random(length)
        reference = tuple(stream.randrange(6) for _ in range(length))
        sequence = Sequence(0, (1, 2, 3), SamplingParams(max_tokens=4096), 1, reference=reference)
        sequence.commit(reference, ())
        reads = []
        for _ in range(40):
            read.clear()
            (tree,) = extended(pair, [sequence], 5, cache)
            reads.append(read[name])
            assert len(tree) == 6
            # the second drafted token was rejected
            sequence.commit((tree.tokens[1], (tree.tokens[2] + 1) % 6), ())
            cache.truncate(0, min(cache.length(0), len(sequence.tokens) - 1))
        assert reads[0] >= length, "the whole text, once"
        assert min(reads[1:]) > 0
        return max(reads[1:])

    assert most(2000) < 20 > most(200)


def test_requests_inside_a_cascade_ask_for_no_log_probabilities() -> None:
    params = SamplingParams(logprobs=2, prompt_logprobs=0, temperature=0.5)
    shadow = _Shadow.of(Sequence(0, (1, 2, 3), params, 0)).sequence
    assert not shadow.tells_prompt
    assert (shadow.params.logprobs, shadow.params.temperature) == (None, 0.5)


def test_a_reference_may_hold_tokens_that_the_cascades_model_lacks() -> None:
    """A reference uses the target's vocabulary, which may be larger than the model's."""

    class Strict(TableModel):
        def score(self, *arguments: Any, **named: Any) -> Any:
            assert max(arguments[0].tokens) < self.vocab_size
            return super().score(*arguments, **named)

    inside = Strict(6, seed=3)
    pair = Cascade(inside, ReferenceDrafter(ReferenceOptions()), Match(), FixedPolicy())
    sequence = Sequence(0, (1, 2, 3), PARAMS[0], seed=20, reference=(1, 2, 3, 6, 7, 1))
    alone = TableModel(6, seed=3)
    (tree,), (wanted_tree,) = (extended(model, [sequence], 5, model.new_cache()) for model in (pair, alone))
    assert tree.tokens == wanted_tree.tokens


class Watched(TableModel):
    """bad: the request whose logits are not numbers. rows: of its forwards."""

    bad = -1
    prefill_chunk = 64

    def score(self, step: Any, cache: Any, taps: Any = ()) -> Scores:
        self.rows = [*getattr(self, "rows", []), len(step.tokens)]
        scores, at = super().score(step, cache, taps), 0
        for segment in step.segments:
            if segment.tree is not None:
                if segment.sequence.key == self.bad:
                    scores.logits[at : at + len(segment.tree)] = torch.nan
                at += len(segment.tree)
        return scores


def test_logits_that_are_not_numbers_end_the_draft_of_their_request_alone() -> None:
    model = Watched(6, seed=3)
    model.bad = 7
    pair = Cascade(model, NgramDrafter(Options()), Match(), FixedPolicy())
    cache, sequences = pair.new_cache(), [Sequence(key, (1, 2, 3, 4), SamplingParams(), key) for key in (7, 8, 9)]
    for _ in range(4):
        trees = extended(pair, sequences, 5, cache)
        assert [len(tree) - 1 for tree in trees] == [0, 5, 5]
        assert all(cache.length(one.key) >= len(one.tokens) for one in sequences[1:]), "their slots are kept"
        for sequence in sequences:
            sequence.commit((1, 2, 3), ())
            cache.truncate(sequence.key, min(cache.length(sequence.key), len(sequence.tokens) - 4))


def test_the_prompts_of_a_batch_are_read_in_forwards_of_bounded_rows() -> None:
    model = Watched(6, seed=3)
    pair = Cascade(model, NgramDrafter(Options()), Match(), FixedPolicy())
    prompts = [tuple((key + at) % 6 for at in range(100)) for key in range(16)]
    sequences = [Sequence(key, prompt, SamplingParams(), key) for key, prompt in enumerate(prompts)]
    trees = extended(pair, sequences, 3, pair.new_cache())
    assert min(len(tree) for tree in trees) == 4
    assert max(model.rows) <= 64 + 16 * 4, "those of prompts, and those of drafts"


def test_an_answer_that_ended_is_remembered_inside_a_cascade_of_a_cascade() -> None:
    model, suffix = TableModel(6, seed=3), SuffixDrafter(SuffixOptions())
    inner = Cascade(model.disturbed(0.8), suffix, Match(), FixedPolicy())
    outer = Cascade(model.disturbed(0.4, 2), ModelDrafter(inner, 6, ModelOptions(path="a", depth=4)), Match(), FixedPolicy())
    engine = engine_of(model, ModelDrafter(outer, 6, ModelOptions(path="b", depth=4)))
    sequence = engine.add([1, 2, 3, 1, 2], SamplingParams(max_tokens=40))
    while engine.has_work:
        engine.step()
    assert sequence.finish_reason == "length"
    probe = Sequence(99, (1, 2, 3, 1, 2), SamplingParams(), 0)
    (tree,) = suffix.propose([probe], [Budget(8, 8)])
    assert tree.tokens[1:4] == tuple(sequence.generated[:3]), "what followed this prompt in the first answer"


class Alternating:
    """A constraint whose tokens depend on how many were drafted."""

    def allowed(self, ancestors: tuple[int, ...]) -> np.ndarray:
        mask = np.zeros(6, bool)
        mask[[len(ancestors) % 2 * 3, len(ancestors) % 2 * 3 + 1]] = True
        return mask

    def checked(self, tokens: tuple[int, ...]) -> int:
        return len(tokens)

    readable = checked

    def forced(self, ancestors: tuple[int, ...]) -> tuple[int, ...]:
        return ()

    def commit(self, tokens: tuple[int, ...]) -> None: ...

    def over(self, ancestors: tuple[int, ...]) -> None: ...


def test_a_cascade_drafts_within_the_grammar_of_the_request() -> None:
    alone, pair = models(MixedDrafter)
    one = Sequence(0, (1, 2, 3), SamplingParams(max_tokens=24, grammar=Grammar(kind="regex", text="a*")), 20)
    one.constraint = Alternating()
    found = [extended(model, [one], 5, model.new_cache())[0].tokens for model in (alone, pair)]
    assert found[0] == found[1]


def test_nothing_is_left_of_a_request_that_was_forked_and_drafted_nothing() -> None:
    _, pair = models(MixedDrafter)
    cache = pair.new_cache()
    extended(pair, [Sequence(0, (1, 2, 3), PARAMS[0], 20)], 5, cache)
    cache.fork(0, 1, 2)
    cache.release(1)
    cache.release(0)
    assert not pair._seen
    assert not pair._shadows
    assert not pair._requests


def test_a_shadow_keeps_no_sources_and_no_drafts_that_came_to_nothing() -> None:
    request = Sequence(0, (1, 2, 3), PARAMS[0], 20)
    shadow = _Shadow.of(request)
    for _ in range(9):
        shadow.sequence.commit((4, 5), ("a", "a"))
        shadow.follow(request)
    assert len(shadow.sequence.sources) <= 2
    request.commit((4, 5, 6), ())
    shadow = _Shadow.of(request)
    # as an interrupt may leave it
    shadow.sequence.take_back(4)
    request.commit((7,), ())
    shadow.follow(request)
    assert shadow.sequence.tokens == request.tokens
