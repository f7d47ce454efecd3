"""Trees drafted in one call equal those drafted level by level, and so do the cache contents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from both_ways import Both, owners_of
from native import THREADS, checkpoint, native, threads
from paceline.budget import Budget
from paceline.growth import Growth
from paceline.models.native import NativeModel
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.stopping import CLASSES, DEEPEST, Stopping
from paceline.tree import Proposal
from paceline.tree_shapes import brush, caterpillar, optimal_tree

CONTEXT = 96
PARAMS = [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.6)]
NARROW = [
    SamplingParams(temperature=0.8, top_p=0.7),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(temperature=1.3, top_k=2),
    SamplingParams(temperature=1.0, min_p=0.3),
    SamplingParams(temperature=1.5, top_k=9, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=2.0, top_k=1),
    SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=0.6, presence_penalty=0.2),
    SamplingParams(temperature=0.7, repetition_penalty=1.5, logit_bias={7: 3.0, 9: -5.0}, min_tokens=3),
]
SHAPES = {
    "brush": brush(3, 4),
    "pairs": brush(2, 6),
    "caterpillar": caterpillar(5, 3),
    "optimal": optimal_tree((0.5, 0.2, 0.1, 0.05), 14, 5),
    "crooked": (-1, 0, 0, 1, 1, 2, 4, 4, 3, 0, 9, 6),
}
KINDS = [kind for kind in Proposal if kind is not Proposal.POINT]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    folder = tmp_path_factory.mktemp("trees")
    return native(checkpoint(folder, sharpness=1.0, max_position_embeddings=CONTEXT)[0])


def mixed(lengths: list[int]) -> list[Sequence]:
    """Sequences with different temperatures."""
    return [owners_of(PARAMS[place % 3], lengths)[place] for place in range(len(lengths))]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", THREADS)
def test_static_trees_drafted_in_one_call_equal_those_drafted_level_by_level(
    model: NativeModel, shape: str, kind: Proposal, count: int
) -> None:
    """Sequences of different lengths and depths, greedy ones among them. Then part of each draft is accepted, and again."""
    both, owners = Both(model), mixed([5, 31, 1, 64])
    with threads(count):
        for depths, nodes in (([4, 2, 7, 1], 99), ([0, 3, 3, 0], 6), ([5, 0, 1, 6], 9)):
            trees = both.extend(owners, depths, Growth(kind, SHAPES[shape]), nodes=nodes)
            assert [tree.deepest > 0 for tree in trees] == [depth > 0 for depth in depths]
            for right, (owner, tree) in enumerate(zip(owners, trees, strict=True)):
                path = tree.first_path()[:right]
                both.back(owner, len(owner.tokens) + len(path))
                owner.commit((*[tree.tokens[node] for node in path], 9), ())


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("nodes", [1, 5, 12])
@pytest.mark.parametrize("count", THREADS)
def test_dynamic_trees_drafted_in_one_call_equal_those_drafted_level_by_level(
    model: NativeModel, width: int, nodes: int, count: int
) -> None:
    both, owners = Both(model), mixed([5, 31, 1, 64])
    with threads(count):
        for depths in ([4, 2, 6, 1], [0, 3, 5, 2]):
            trees = both.extend(owners, depths, Growth(Proposal.COUPLED, None, width), nodes=nodes)
            assert all(len(tree) - 1 <= nodes for tree in trees)
            for right, (owner, tree) in enumerate(zip(owners, trees, strict=True)):
                path = tree.first_path()[:right]
                both.back(owner, len(owner.tokens) + len(path))
                owner.commit((*[tree.tokens[node] for node in path], 9), ())


@pytest.mark.parametrize("growth", [Growth(kind, SHAPES["optimal"]) for kind in KINDS] + [Growth(width=3)], ids=str)
@pytest.mark.parametrize("vocab_size", [60, 97, 120])
def test_drafted_tokens_are_within_the_vocabulary_of_the_target(model: NativeModel, growth: Growth, vocab_size: int) -> None:
    for tree in Both(model, vocab_size).extend(mixed([5, 9, 20]), [4, 5, 3], growth, nodes=14):
        assert max(tree.tokens[1:]) < min(vocab_size, 97)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_draft_may_have_less_room_than_its_shape(tmp_path: Path, kind: Proposal) -> None:
    both = Both(native(checkpoint(tmp_path, sharpness=1.0)[0]))
    for nodes in (1, 2, 5, 3):
        owners = mixed([5, 9, 20])
        assert all(len(tree) - 1 <= nodes for tree in both.extend(owners, [3] * 3, Growth(kind, SHAPES["brush"]), nodes=nodes))
        for owner in owners:
            both.back(owner, 0)


@pytest.mark.parametrize("growth", [Growth(Proposal.IID, SHAPES["brush"]), Growth(width=2)], ids=["shape", "dynamic"])
def test_a_tree_ends_with_the_context(model: NativeModel, growth: Growth) -> None:
    trees = Both(model).extend(mixed([CONTEXT - 1, CONTEXT, CONTEXT + 1, 4]), [4] * 4, growth)
    assert [tree.deepest for tree in trees] == [2, 1, 0, 4]


@pytest.mark.parametrize("growth", [Growth(kind, SHAPES["crooked"]) for kind in KINDS] + [Growth(width=3)], ids=str)
@pytest.mark.parametrize("floor", [0.0, 0.08])
def test_branches_end_where_they_get_unlikely_or_their_text_ends(model: NativeModel, growth: Growth, floor: float) -> None:
    chances = np.linspace(0.6, 1.0, DEEPEST * CLASSES, dtype=np.float32).reshape(DEEPEST, CLASSES)[::-1].copy()
    rules = [
        Stopping(chances, 1.0, [0.7, 0.6]),
        Stopping(chances, 0.8, [0.0, 0.3, 0.5]),
        None,
        Stopping(chances, 5.0, [0.99] * 15),
    ]
    owners = mixed([3, 9, 20, 40])
    owners[2].stop_ids = frozenset(range(0, 97, 3))
    whole = Both(model).extend(mixed([3, 9, 20, 40]), [5] * 4, growth)
    cut = Both(model).extend(owners, [5] * 4, growth, floor, rules)
    assert any(len(one) < len(other) for one, other in zip(cut, whole, strict=True))


@pytest.mark.parametrize("growth", [Growth(kind, SHAPES["optimal"]) for kind in Proposal] + [Growth(width=3)], ids=str)
@pytest.mark.parametrize("count", THREADS)
def test_trees_within_cuts_and_penalties_equal_those_drafted_level_by_level(
    model: NativeModel, growth: Growth, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, drafted = list[int](), model._drafted
    monkeypatch.setattr(model, "_drafted", lambda live, *rest: called.append(len(live)) or drafted(live, *rest))
    owners = [owners_of(one, [9] * len(NARROW))[place] for place, one in enumerate(NARROW)]
    both = Both(model)
    with threads(count):
        for depth in (4, 2):
            for right, (owner, tree) in enumerate(zip(owners, both.extend(owners, [depth] * len(owners), growth), strict=True)):
                assert tree.deepest > 0
                path = tree.first_path()[: right % 3]
                both.back(owner, len(owner.tokens) + len(path))
                owner.commit((*[tree.tokens[node] for node in path], 9), ())
    assert called == [len(owners)] * 2


@pytest.mark.parametrize("growth", [Growth(kind, SHAPES["brush"]) for kind in KINDS] + [Growth(width=3)], ids=str)
def test_logits_that_are_not_numbers_end_a_tree_and_not_the_request(tmp_path: Path, growth: Growth) -> None:
    model = native(checkpoint(tmp_path)[0])
    model.packed._embedding.fill_(torch.nan)
    cache, owners = model.new_cache(), mixed([4, 6])
    trees = model.extend(owners, [Budget(9, 3), Budget(9, 2)], cache, growth=growth, vocab_size=97, source="test")
    assert [tree.tokens for tree in trees] == [(owner.root,) for owner in owners]
    assert [cache.length(owner.key) for owner in owners] == [4, 6]


def test_a_drafter_that_joins_late_catches_up(model: NativeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than one forward takes: the first ones are fed in chunks."""
    monkeypatch.setattr(model, "prefill_chunk", 16)
    for lengths in ([60, 3], [18], [17, 1, 50]):
        Both(model).extend(mixed(lengths), [3] * len(lengths), Growth(width=2))
