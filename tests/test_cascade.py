"""Cascades: `a^b` drafts token for token what b drafts alone, in fewer forwards of b, and forgets whom it is told to forget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes import MixedDrafter, ScriptedDrafter, TableModel, WrongDrafter
from paceline.cascade import Cascade
from paceline.compose import build_drafter
from paceline.drafters.base import Surroundings
from paceline.drafters.model import ModelDrafter, Options as ModelOptions
from paceline.drafters.ngram import NgramDrafter, Options
from paceline.growth import Growth
from paceline.models.base import LanguageModel
from paceline.params import SamplingParams
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.spec import SpecError
from paceline.tree import Budget, DraftTree, Proposal
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
def test_the_same_tokens_are_drafted(kind: type[ScriptedDrafter], params: SamplingParams) -> None:
    """Over steps that accept none, some or all of the last draft, for sequences of different lengths side by side."""
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


def test_what_comes_true_inside_saves_forwards() -> None:
    alone, pair = models(MixedDrafter)
    sequence = Sequence(0, (1, 2, 3), PARAMS[0], 0)
    extended(alone, [sequence], 8, alone.new_cache())
    extended(pair, [sequence], 8, pair.new_cache())
    assert pair._pair.forwards < alone.forwards


def test_other_drafts_are_the_models_own() -> None:
    alone, pair = models(MixedDrafter)
    growth = Growth(Proposal.IID, caterpillar(3, 2))
    sequence = Sequence(0, (1, 2, 3), PARAMS[1], 9)
    made = [
        model.extend([sequence], [Budget(6, 3)], model.new_cache(), growth=growth, vocab_size=6, source="b")[0]
        for model in (alone, pair)
    ]
    assert made[0].tokens == made[1].tokens
    assert made[1].kind is Proposal.IID


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
    assert drafter.held_bytes == 0
    assert not pair._seen


def test_only_a_model_can_be_drafted_for(tmp_path: Path) -> None:
    surroundings = Surroundings(TableModel(6), None, lambda path: (TableModel(6), None))  # pyright: ignore[reportArgumentType]
    with pytest.raises(SpecError, match="'ngram' is none"):
        build_drafter("ngram^ngram", surroundings)
