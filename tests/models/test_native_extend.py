"""Drafting in one call gives the same trees and cache contents as drafting token by token."""

from __future__ import annotations

from collections.abc import Sequence as Many
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from both_ways import CHAIN, Both, owners_of
from native import THREADS, checkpoint, native, threads
from paceline.budget import Budget
from paceline.growth import Growth
from paceline.models.native import NativeModel
from paceline.models.native_drafts import is_compiled
from paceline.params import Grammar, SamplingParams
from paceline.sequence import Sequence
from paceline.stopping import CLASSES, DEEPEST, Stopping
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import Shape, brush, caterpillar

CONTEXT = 96
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=3.0, min_tokens=4),
    SamplingParams(temperature=0.9, top_p=0.8),
    SamplingParams(repetition_penalty=1.4),
    SamplingParams(temperature=1.2, top_k=4),
    SamplingParams(temperature=0.9, min_p=0.3),
    SamplingParams(temperature=2.0, top_k=1),
    SamplingParams(temperature=2.0, min_p=1.0),
    SamplingParams(temperature=1.5, top_p=1e-300),
    SamplingParams(temperature=1.5, top_k=9, min_p=0.05),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    folder = tmp_path_factory.mktemp("extend")
    return native(checkpoint(folder, sharpness=1.0, max_position_embeddings=CONTEXT)[0])


@pytest.mark.parametrize("params", PARAMS, ids=lambda params: f"{params.temperature} {params.top_p} {params.repetition_penalty}")
@pytest.mark.parametrize("count", THREADS)
def test_chains_drafted_in_one_call_equal_those_drafted_token_by_token(
    model: NativeModel, params: SamplingParams, count: int
) -> None:
    """Sequences of different lengths and depths: some end before others. Then part of each draft is accepted, and again."""
    both, owners = Both(model), owners_of(params, [5, 31, 1, 64])
    with threads(count):
        for depths in ([4, 2, 7, 1], [0, 3, 3, 0], [5, 0, 1, 6]):
            trees = both.extend(owners, depths)
            assert [len(tree) - 1 for tree in trees] == depths
            for kept, (owner, tree) in enumerate(zip(owners, trees, strict=True)):
                # the first few tokens of the draft are accepted, then another token follows
                both.back(owner, len(owner.tokens) + min(kept, len(tree) - 1))
                owner.commit((*tree.tokens[1 : kept + 1], 9), ())


@pytest.mark.skipif(THREADS[-1] == 1, reason="one core")
def test_drafting_has_scratch_for_every_thread_whatever_cpu_count_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`PYTHON_CPU_COUNT` overrides the processor count that Python reports."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    both = Both(native(checkpoint(tmp_path, sharpness=1.0)[0]))
    for count in THREADS:
        with threads(count):
            owners = owners_of(PARAMS[1], [5, 9])
            both.extend(owners, [3, 3])
        for owner in owners:
            both.back(owner, 0)
        drafts = both.model._drafts
        assert [len(room) for room in (drafts._held, drafts._values, drafts._seeded, drafts._paths)] == [count] * 4


def test_sequences_under_different_temperatures_draft_together(model: NativeModel) -> None:
    both = Both(model)
    owners = [owners_of(params, [3, 3, 3])[key] for key, params in enumerate(PARAMS[:3])]
    assert [len(tree) for tree in both.extend(owners, [6, 6, 6])] == [7, 7, 7]
    for owner in owners:
        both.back(owner, 1)
    both.extend([owners[2], owners[0]], [2, 2])


def test_a_draft_ends_with_the_context(model: NativeModel) -> None:
    both, owners = Both(model), owners_of(PARAMS[1], [CONTEXT - 3, CONTEXT - 1, CONTEXT, CONTEXT + 1, 4])
    trees = both.extend(owners, [9] * 5)
    assert [len(tree) - 1 for tree in trees] == [4, 2, 1, 0, 9]


@pytest.mark.parametrize("params", PARAMS[:2], ids=["greedy", "sampled"])
@pytest.mark.parametrize("vocab_size", [40, 128])
def test_drafted_tokens_are_within_the_vocabulary_of_the_target(
    model: NativeModel, params: SamplingParams, vocab_size: int
) -> None:
    both = Both(model, vocab_size)
    for tree in both.extend(owners_of(params, [5, 9]), [8, 8]):
        assert max(tree.tokens[1:]) < min(vocab_size, 97)


@pytest.mark.parametrize("params", PARAMS[:3], ids=["greedy", "sampled", "cool"])
@pytest.mark.parametrize("kind", [Proposal.POINT, Proposal.COUPLED])
@pytest.mark.parametrize("floor", [0.05, 0.15])
def test_a_chain_ends_behind_the_token_in_doubt(model: NativeModel, params: SamplingParams, kind: Proposal, floor: float) -> None:
    both, owners = Both(model), owners_of(params, [3, 9, 20, 40])
    trees = both.extend(owners, [8, 8, 8, 1], Growth(kind, caterpillar(8)), floor)
    assert len({len(tree) for tree in trees}) > 1
    for tree in trees:
        assert all(confidence >= floor for confidence in tree.confidences[1:-1])


@pytest.mark.parametrize("params", PARAMS[:3], ids=["greedy", "sampled", "cool"])
@pytest.mark.parametrize("kind", [Proposal.POINT, Proposal.COUPLED, Proposal.IID])
def test_a_chain_ends_where_its_path_gets_unlikely(model: NativeModel, params: SamplingParams, kind: Proposal) -> None:
    """Different rules for different requests, and none for one; the other drafts continue after the shorter ones end."""
    chances = np.linspace(0.6, 1.0, DEEPEST * CLASSES, dtype=np.float32).reshape(DEEPEST, CLASSES)[::-1].copy()
    rules = [
        Stopping(chances, 1.0, [0.5] * 15),
        Stopping(chances, 0.8, [0.0, 0.3, 0.5]),
        None,
        Stopping(chances, 5.0, [0.99] * 15),
    ]
    both, owners = Both(model), owners_of(params, [3, 9, 20, 40])
    trees = both.extend(owners, [12, 12, 4, 12], Growth(kind, caterpillar(12)), rules=rules)
    assert len({len(tree) for tree in trees}) > 2
    assert len(trees[2]) == 5
    for tree, rule in zip(trees, rules, strict=True):
        reach = 1.0
        for level, confidence in enumerate(tree.confidences[1:] if rule else (), 1):
            reach = rule.reach(reach, level, confidence)
            assert rule.goes_on(level, reach) or level == len(tree) - 1


@pytest.mark.parametrize("kind", [kind for kind in Proposal if kind.drawn])
@pytest.mark.parametrize("vocab_size", [60, 97, 120])
def test_drawn_chains_equal_those_drafted_token_by_token(model: NativeModel, kind: Proposal, vocab_size: int) -> None:
    """Sequences that end before others, greedy ones among them; recorded distributions are compared as well."""
    both = Both(model, vocab_size)
    owners = [owners_of(PARAMS[place % 3], [5, 31, 1, 64, 7])[place] for place in range(5)]
    for depths, floor in (([4, 2, 7, 1, 5], 0.0), ([3, 0, 3, 6, 5], 0.04)):
        trees = both.extend(owners, depths, Growth(kind, caterpillar(8)), floor)
        assert [tree.kind for tree in trees if len(tree) > 1] == [
            kind if owner.params.temperature else Proposal.POINT
            for owner, tree in zip(owners, trees, strict=True)
            if len(tree) > 1
        ]
        for owner in owners:
            both.back(owner, len(owner.tokens))
            owner.commit((7, 9), ())


@pytest.mark.parametrize("kind", [kind for kind in Proposal if kind.drawn])
@pytest.mark.parametrize("vocab_size", [60, 97, 120])
def test_chains_drawn_within_cuts_and_penalties_equal_those_drafted_token_by_token(
    model: NativeModel, kind: Proposal, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, called = Both(model, vocab_size), list[int]()
    drafted = model._drafted
    monkeypatch.setattr(model, "_drafted", lambda live, *rest: called.append(len(live)) or drafted(live, *rest))
    everyone = [*PARAMS, SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=0.6, presence_penalty=0.2)]
    owners = [owners_of(params, [9] * len(everyone))[place] for place, params in enumerate(everyone)]
    for depths in ([4] * len(owners), [2, 5, 3] * (len(owners) // 3) + [1] * (len(owners) % 3)):
        trees = both.extend(owners, depths, Growth(kind, caterpillar(8)))
        assert [len(tree) - 1 for tree in trees] == depths
        for owner in owners:
            both.back(owner, len(owner.tokens))
            owner.commit((7, 9), ())
    assert called == [len(owners)] * 2


@pytest.mark.parametrize("shape", [caterpillar(4), brush(2, 4)], ids=["chain", "tree"])
def test_what_tokens_were_drawn_from_is_gone_with_their_trees(model: NativeModel, shape: Shape) -> None:
    """Each proposal is as large as the vocabulary, and is not counted in any held bytes."""
    options = {"growth": Growth(Proposal.IID, shape), "vocab_size": 97, "source": "test"}
    trees = model.extend(owners_of(PARAMS[1], [5, 9]), [Budget(9, 4)] * 2, model.new_cache(), **options)
    held = [StorageWeakRef(row.untyped_storage()) for tree in trees for row in tree.proposals.values()]
    assert held
    del trees
    assert all(one.expired() for one in held)


def test_greedy_drafts_of_a_sampled_request_know_no_noise(model: NativeModel) -> None:
    greedy, sampled = (owners_of(params, [5, 9]) for params in PARAMS[:2])
    chains = [
        [tree.tokens for tree in Both(model).extend(owners, [5, 5], Growth(Proposal.POINT, caterpillar(8)))]
        for owners in (greedy, sampled)
    ]
    assert chains[0] == chains[1]


def test_a_drafter_that_joins_late_catches_up(model: NativeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than one forward takes: the first ones are fed in chunks."""
    monkeypatch.setattr(model, "prefill_chunk", 16)
    for lengths in ([60, 3], [18], [17, 1, 50]):
        Both(model).extend(owners_of(PARAMS[0], lengths), [3] * len(lengths))


def test_a_budget_of_no_tokens_runs_no_forward(model: NativeModel) -> None:
    both, owners = Both(model), owners_of(PARAMS[0], [5, 9])
    assert [tree.tokens for tree in both.extend(owners, [0, 0])] == [(owner.root,) for owner in owners]
    assert both.fast.length(0) == 0


def test_logits_that_are_not_numbers_end_a_draft_and_not_the_request(tmp_path: Path) -> None:
    """Logits become NaN after the model was loaded."""
    model = native(checkpoint(tmp_path)[0])
    model.packed._embedding.fill_(torch.nan)
    cache, owners = model.new_cache(), owners_of(PARAMS[1], [4, 6])
    trees = model.extend(owners, [Budget(9, 3), Budget(9, 2)], cache, growth=CHAIN, vocab_size=97, source="test")
    assert [len(tree) for tree in trees] == [1, 1]
    assert [cache.length(owner.key) for owner in owners] == [4, 6]


@pytest.mark.parametrize("kind", list(Proposal))
@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_draft_ends_before_a_row_that_holds_no_number(tmp_path: Path, kind: Proposal, level: int) -> None:
    """Behind a token with a NaN embedding no rule could verify a draw."""
    model, owner = native(checkpoint(tmp_path, sharpness=1.0)[0]), owners_of(SamplingParams(temperature=0.8), [5])[0]

    def drafted() -> DraftTree:
        growth = Growth(kind, caterpillar(4))
        return model.extend([owner], [Budget(4, 4)], model.new_cache(), growth=growth, vocab_size=120, source="test")[0]

    whole = drafted()
    odd = whole.tokens[level]
    model.packed._embedding[odd].fill_(torch.nan)
    cut = drafted()
    assert cut.tokens == whole.tokens[: whole.tokens.index(odd, 1) + 1]
    assert all(float(held.sum()) == pytest.approx(1.0) for held in cut.proposals.values())


class Anything:
    """A grammar that allows every token."""

    def allowed(self, ancestors: Many[int]) -> np.ndarray:
        return np.ones(97, bool)


def test_requests_under_a_grammar_do_not_keep_others_from_drafting_in_one_call(
    model: NativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request under a grammar drafts separately, the others in one call."""
    called: list[int] = []
    spelled = [one.model_copy(update={"grammar": Grammar(kind="regex", text="a*")}) for one in PARAMS[:2]]
    everyone = [*PARAMS, *spelled]
    drafted = model._drafted
    monkeypatch.setattr(model, "_drafted", lambda live, *rest: called.append(len(live)) or drafted(live, *rest))
    noise = torch.Generator().manual_seed(3)
    owners = [
        Sequence(key, tuple(torch.randint(3, 90, (9 + key,), generator=noise).tolist()), params, seed=key)
        for key, params in enumerate(everyone)
    ]
    for owner in owners[-2:]:
        owner.constraint = Anything()
    trees = Both(model).extend(owners, [4] * len(owners))
    assert [len(tree) for tree in trees] == [5] * len(owners)
    assert called == [sum(is_compiled(params, CHAIN.kind) for params in everyone)]
    assert called[0] == len(everyone) - 2
