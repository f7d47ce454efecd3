"""Drafts of models: the requested tree shape and kind of tokens, drawn from the distributions that the tree records."""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings, strategies as st

import reference
from fakes import RecordingCache, TableModel
from laws import PROMPT, Outcome, chi_square, obeys
from paceline.budget import Budget
from paceline.compose import build_verifier
from paceline.growth import Growth
from paceline.noise import noised_best
from paceline.params import SamplingParams
from paceline.ranking import Noise, Ranking
from paceline.sampling import Context, target_scores
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import Shape, brush, caterpillar, optimal_tree

still = settings(derandomize=True, deadline=None, max_examples=80, database=None)
EVERYTHING = SamplingParams(
    temperature=0.9, top_k=4, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, logit_bias={1: 0.7}
)
NAMES = ["greedy", "sampled", "top-p", "everything"]
PARAMS = [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9), EVERYTHING]
DRAWN = [kind for kind in Proposal if kind.drawn]
SHAPES = [caterpillar(4), caterpillar(3, 3), brush(3, 3), optimal_tree((0.6, 0.2, 0.08), 12, 4)]


def extended(
    model: TableModel, owners: Many[Sequence], growth: Growth, budget: Budget = Budget(64, 16), vocab_size: int = 0
) -> list[DraftTree]:
    return model.extend(
        owners, [budget] * len(owners), model.new_cache(), growth=growth, vocab_size=vocab_size or model.vocab_size, source="m"
    )


def path_of(tree: DraftTree, node: int) -> tuple[int, ...]:
    return tuple(tree.tokens[step] for step in tree.path(node))


def own_scores(model: TableModel, owner: Sequence, path: Many[int]) -> torch.Tensor:
    return target_scores(model.row([*owner.tokens, *path]), Context(owner, tuple(path)))


def best(model: TableModel, owner: Sequence, path: Many[int], count: int) -> list[int]:
    """The model's `count` best tokens under the position's noise; the first is the one it would choose."""
    scores = own_scores(model, owner, path)
    if owner.params.temperature == 0.0:
        return scores.topk(min(count, len(scores))).indices.tolist()
    return noised_best(scores, owner.seed, len(owner.tokens) + len(path), count)


@pytest.mark.parametrize("params", PARAMS, ids=NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_a_tree_has_the_shape_asked_for_and_the_tokens_that_the_model_ranks_first(params: SamplingParams, shape: Shape) -> None:
    """Siblings are the best tokens under the position's noise, from which plain decoding would choose."""
    model, owners = TableModel(7, seed=2), [Sequence(key, (key, 1, 2), params, seed=key) for key in range(4)]
    for owner, tree in zip(owners, extended(model, owners, Growth(shape=shape)), strict=True):
        if params.top_p == 1.0:
            assert tree.parents == shape
        assert tree.kind is (Proposal.COUPLED if params.temperature else Proposal.POINT)
        assert set(tree.sources[1:]) == {"m"}
        for node, siblings in enumerate(tree.siblings):
            path = path_of(tree, node)
            wanted = best(model, owner, path, len(siblings)) if siblings else []
            # fewer where fewer tokens have a probability above 0
            assert [tree.tokens[child] for child in siblings] == wanted


@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_greedy_choices_at_a_temperature_know_no_noise(shape: Shape) -> None:
    model, owner = TableModel(7, seed=2), Sequence(0, (3, 1, 2), EVERYTHING, seed=5)
    (tree,) = extended(model, [owner], Growth(Proposal.POINT, shape))
    assert tree.kind is Proposal.POINT
    for node, siblings in enumerate(tree.siblings):
        ranked = own_scores(model, owner, path_of(tree, node)).argsort(descending=True, stable=True).tolist()
        assert [tree.tokens[child] for child in siblings] == ranked[: len(siblings)]
        for child in siblings:
            share = own_scores(model, owner, path_of(tree, node)).softmax(-1)[tree.tokens[child]]
            assert tree.confidences[child] == pytest.approx(float(share), rel=1e-5)


@pytest.mark.parametrize("size", [7, 9000])
def test_a_coupled_confidence_is_the_softmax_share_of_the_noised_scores(size: int) -> None:
    """In a large vocabulary tokens far from the best are left out: an estimate, which affects only speed."""
    model, owner = TableModel(7, seed=2), Sequence(0, (3, 1, 2), SamplingParams(temperature=0.8), seed=5)
    if size > 7:
        model.vocab_size = size
        model.table = torch.randn(4096, size, generator=torch.Generator().manual_seed(0)) * 3
    (tree,) = extended(model, [owner], Growth(shape=caterpillar(3, 2)))
    for node, siblings in enumerate(tree.siblings):
        scores = own_scores(model, owner, path_of(tree, node)).double()
        noise = [reference.gumbel(5, 3 + tree.depth[node], token) for token in range(size)] if siblings else []
        for child in siblings:
            share = (scores + torch.tensor(noise)).softmax(-1)[tree.tokens[child]]
            assert tree.confidences[child] == pytest.approx(float(share), rel=0.2 if size > 7 else 1e-5)


@pytest.mark.parametrize("params", PARAMS[1:], ids=NAMES[1:])
@pytest.mark.parametrize("shape", SHAPES, ids=len)
@pytest.mark.parametrize("kind", DRAWN)
def test_drawn_trees_record_the_distribution_of_every_node_with_children(
    params: SamplingParams, shape: Shape, kind: Proposal
) -> None:
    model, owners = TableModel(7, seed=3), [Sequence(key, (key, 1, 2), params, seed=key) for key in range(3)]
    for owner, tree in zip(owners, extended(model, owners, Growth(kind, shape)), strict=True):
        assert tree.kind is kind
        assert set(tree.proposals) == {(node, "m") for node, children in enumerate(tree.siblings) if children}
        for (node, _), probs in tree.proposals.items():
            assert probs.dtype is torch.float32
            assert torch.allclose(probs, own_scores(model, owner, path_of(tree, node)).softmax(-1))
            for child in tree.siblings[node]:
                assert 0 < tree.confidences[child] == float(probs[tree.tokens[child]])


@pytest.mark.parametrize("params", PARAMS, ids=NAMES)
@pytest.mark.parametrize("shape", [*SHAPES, None], ids=lambda shape: len(shape) if shape else "dynamic")
@pytest.mark.parametrize("size", [7, 9000])
def test_a_level_ranked_on_the_device_gives_the_same_tree(
    params: SamplingParams, shape: Shape | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: all nodes of all drafts are ranked at once, and only tokens and shares are read back."""
    owners = [Sequence(key, (key, 1, 2), params, seed=key) for key in range(3)]
    owners.append(Sequence(3, (3, 1, 2), SamplingParams(temperature=0.5), seed=3))
    growth, alone = Growth(shape=shape, width=1 if shape else 2), TableModel(size, seed=2)
    together = TableModel(size, seed=2)
    monkeypatch.setattr(together, "returns_early", True)
    budget = Budget(12, 3)
    for one, other in zip(extended(alone, owners, growth, budget), extended(together, owners, growth, budget), strict=True):
        assert len(one) > 1
        assert (one.tokens, one.parents, one.kind) == (other.tokens, other.parents, other.kind)
        # the CPU leaves out tokens far behind the best in large vocabularies
        assert one.confidences == pytest.approx(other.confidences, rel=1e-5 if size < 1000 else 5e-3)


@pytest.mark.parametrize("sick", [math.nan, -math.inf, math.inf])
def test_a_row_that_holds_no_numbers_ranks_no_tokens_alone_or_together(sick: float) -> None:
    rows = torch.full((2, 7), sick)
    rows[1] = torch.arange(7.0)
    for noise in (None, Noise(1, 5)):
        for together in (False, True):
            ranking = Ranking(together)
            for row in rows:
                ranking.rank(row, 3, noise)
            ranking.put([(4, 0.5)])
            first, second, third = ranking.found()
            assert first == []
            assert len(second) == 3
            assert third == [(4, 0.5)]


@pytest.mark.parametrize("kind", DRAWN)
def test_a_greedy_request_is_never_drafted_by_draws(kind: Proposal) -> None:
    model, owner = TableModel(7), Sequence(0, (3, 1, 2), SamplingParams(), seed=5)
    (tree,) = extended(model, [owner], Growth(kind, caterpillar(3, 2)))
    assert tree.kind is Proposal.POINT
    assert not tree.proposals


# the law of the draws: many seeds, compared with enumeration by an oracle that shares no code with the engine

SEEDS = 2500


def drafts(kind: Proposal, shape: Shape, params: SamplingParams, amateur: bool = False) -> list[DraftTree]:
    model = TableModel(5, sharpness=1.5, seed=4)
    owners = [Sequence(seed, PROMPT, params, seed) for seed in range(SEEDS)]
    return extended(model, owners, Growth(kind, shape, amateur=amateur))


def law_of(params: SamplingParams, length: int) -> dict[Outcome, float]:
    model = TableModel(5, sharpness=1.5, seed=4)
    return reference.law(lambda tokens: model.row(tokens).double().numpy(), PROMPT, params, length)


@pytest.mark.parametrize("params", PARAMS[1:], ids=NAMES[1:])
@pytest.mark.parametrize("kind", DRAWN)
def test_a_drawn_chain_has_the_law_of_the_model_that_draws_it(kind: Proposal, params: SamplingParams) -> None:
    outcomes = [tuple(tree.tokens[1:]) for tree in drafts(kind, caterpillar(3), params)]
    assert obeys(outcomes, law_of(params, 3))


def test_independent_siblings_are_independent() -> None:
    law = law_of(PARAMS[1], 1)
    pairs = {(a, b): p * q for (a,), p in law.items() for (b,), q in law.items()}
    assert chi_square([tuple(tree.tokens[1:]) for tree in drafts(Proposal.IID, caterpillar(1, 2), PARAMS[1])], pairs) > 1e-6


def test_siblings_without_replacement_are_drawn_one_after_another() -> None:
    law = {token: p for (token,), p in law_of(PARAMS[1], 1).items()}
    wanted = {(a, b, c): law[a] * law[b] / (1 - law[a]) * law[c] / (1 - law[a] - law[b]) for a, b, c in permutations(range(5), 3)}
    trees = drafts(Proposal.WITHOUT_REPLACEMENT, caterpillar(1, 3), PARAMS[1])
    assert chi_square([tuple(tree.tokens[1:]) for tree in trees], wanted) > 1e-6


def test_a_hub_is_in_every_pair() -> None:
    law = {token: p for (token,), p in law_of(PARAMS[1], 1).items()}
    hub = max(law, key=law.__getitem__)
    wanted = {(x, hub): p for x, p in law.items() if x != hub} | {
        (hub, x): law[hub] * p / (1 - law[hub]) for x, p in law.items() if x != hub
    }
    assert chi_square([tuple(tree.tokens[1:]) for tree in drafts(Proposal.HUB, caterpillar(1, 2), PARAMS[1])], wanted) > 1e-6


def test_chains_side_by_side_are_samples_of_their_own() -> None:
    """Three of two tokens each: the second token of the last one, given its first, has the model's law."""
    outcomes = [(tree.tokens[3], tree.tokens[6]) for tree in drafts(Proposal.IID, brush(3, 2), PARAMS[1])]
    assert obeys(outcomes, law_of(PARAMS[1], 2))


def test_sources_draw_from_streams_of_their_own_and_not_from_the_noise_that_judges() -> None:
    model, params = TableModel(5, sharpness=0.5), SamplingParams(temperature=1.0)
    owners = [Sequence(seed, PROMPT, params, seed) for seed in range(3000)]
    same = math.fsum(p * p for p in model.row(PROMPT).softmax(-1).tolist())
    chosen = [best(model, owner, (), 1)[0] for owner in owners]
    options = {"growth": Growth(Proposal.IID, caterpillar(1)), "vocab_size": 5}
    draws = [
        [tree.tokens[1] for tree in model.extend(owners, [Budget(1, 1)] * 3000, model.new_cache(), source=name, **options)]
        for name in ("model", "model 2")
    ]
    for one, other in ((draws[0], draws[1]), (draws[0], chosen)):
        assert sum(a == b for a, b in zip(one, other, strict=True)) / 3000 == pytest.approx(same, abs=0.04)


# the amateur of contrastive rules


@pytest.mark.parametrize("shape", SHAPES, ids=len)
@pytest.mark.parametrize("kind", [Proposal.IID, Proposal.WITHOUT_REPLACEMENT, Proposal.POINT])
@pytest.mark.parametrize("params", [PARAMS[0], EVERYTHING], ids=["greedy", "sampled"])
def test_an_amateur_shows_its_own_distribution_everywhere(params: SamplingParams, shape: Shape, kind: Proposal) -> None:
    model, owner = TableModel(7, seed=3), Sequence(0, (4, 1, 2), params, seed=8)
    (tree,) = extended(model, [owner], Growth(kind, shape, amateur=True))
    assert set(tree.proposals) == {(node, "m") for node in range(len(tree))}
    for (node, _), probs in tree.proposals.items():
        assert torch.allclose(probs, model.row([*owner.tokens, *path_of(tree, node)]).softmax(-1))


@pytest.mark.parametrize("params", [PARAMS[0], EVERYTHING], ids=["greedy", "sampled"])
def test_an_amateur_shows_its_distribution_at_every_node_of_a_dynamic_tree(params: SamplingParams) -> None:
    model, owner = TableModel(7, seed=3), Sequence(0, (4, 1, 2), params, seed=8)
    (tree,) = extended(model, [owner], Growth(Proposal.POINT, width=3, amateur=True), Budget(7, 3))
    assert len(tree) == 8
    assert set(tree.proposals) == {(node, "m") for node in range(8)}
    for (node, _), probs in tree.proposals.items():
        assert torch.allclose(probs, model.row([*owner.tokens, *path_of(tree, node)]).softmax(-1))


def test_an_amateur_draws_from_what_it_shows() -> None:
    outcomes = [tuple(tree.tokens[1:]) for tree in drafts(Proposal.IID, caterpillar(3), EVERYTHING, amateur=True)]
    assert obeys(outcomes, law_of(SamplingParams(temperature=1.0), 3))


@pytest.mark.parametrize("kind", [Proposal.IID, Proposal.POINT])
def test_an_amateur_shows_no_row_that_holds_no_number(kind: Proposal) -> None:
    """Contrastive decoding would take it for a fault of the target, and end the request."""
    model, owner = TableModel(7, seed=3), Sequence(0, (4, 1, 2), SamplingParams(temperature=1.0), seed=8)
    growth = Growth(kind, caterpillar(3), amateur=True)
    (whole,) = extended(model, [owner], growth)
    model.row([*owner.tokens, whole.tokens[1]]).fill_(torch.nan)
    (tree,) = extended(model, [owner], growth)
    assert tree.tokens == whole.tokens[:2]
    assert set(tree.proposals) == {(0, "m")}
    (verdict,) = build_verifier("contrastive")([owner], [tree], [torch.zeros(2, 7)])
    assert 1 <= len(verdict.tokens) <= 2


# dynamic trees


def grown(model: TableModel, owner: Sequence, nodes: int, depth: int, width: int) -> dict[tuple[int, ...], float]:
    """The expected dynamic tree, computed independently: reachable paths level by level, then the best. Path -> likelihood."""
    found: dict[tuple[int, ...], float] = {}
    level: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(depth):
        children: dict[tuple[int, ...], float] = {}
        for path, worth in level.items():
            shares = own_scores(model, owner, path).softmax(-1)
            for token in shares.argsort(descending=True).tolist()[:width]:
                children[*path, token] = worth * float(shares[token])
        found |= children
        kept = sorted(found, key=found.__getitem__, reverse=True)[:nodes]
        level = {
            path: children[path] for path in sorted(children, key=children.__getitem__, reverse=True)[:width] if path in kept
        }
    return {path: found[path] for path in sorted(found, key=found.__getitem__, reverse=True)[:nodes]}


@pytest.mark.parametrize("nodes", [1, 4, 9, 20])
@pytest.mark.parametrize("depth", [1, 3, 6])
@pytest.mark.parametrize("width", [2, 4])
def test_a_dynamic_tree_holds_the_likeliest_paths(nodes: int, depth: int, width: int) -> None:
    for key in range(5):
        model, owner = TableModel(9, seed=key, sharpness=1.5), Sequence(key, (3, 1, key), SamplingParams(), seed=5)
        (tree,) = extended(model, [owner], Growth(width=width), Budget(nodes, depth))
        wanted = grown(model, owner, nodes, depth, width)
        assert {path_of(tree, node) for node in range(1, len(tree))} == set(wanted)
        held = [math.prod(tree.confidences[step] for step in tree.path(node)) for node in range(len(tree))]
        assert held == sorted(held, reverse=True)
        assert held[1:] == pytest.approx(list(wanted.values()), rel=1e-4)


def test_a_dynamic_tree_at_a_temperature_is_coupled() -> None:
    model, owner = TableModel(9, seed=1), Sequence(0, (3, 1, 2), EVERYTHING, seed=5)
    (tree,) = extended(model, [owner], Growth(width=3), Budget(10, 4))
    assert tree.kind is Proposal.COUPLED
    for node, siblings in enumerate(tree.siblings):
        path = path_of(tree, node)
        ranked = best(model, owner, path, 3)
        assert [tree.tokens[child] for child in siblings] == ranked[: len(siblings)]


@pytest.mark.parametrize("kind", DRAWN)
def test_a_dynamic_tree_of_drawn_tokens_is_refused(kind: Proposal) -> None:
    with pytest.raises(ValueError, match="settled before"):
        Growth(kind, width=3)


# budgets


@still
@given(
    st.sampled_from([*SHAPES, None]), st.sampled_from([Proposal.POINT, Proposal.COUPLED, Proposal.IID]), st.integers(0, 14),
    st.integers(0, 5), st.integers(0, 50),
)  # fmt: skip
def test_no_draft_exceeds_its_budget(shape: Shape | None, kind: Proposal, nodes: int, depth: int, seed: int) -> None:
    if shape is None and kind.drawn:
        return
    model, owner = TableModel(9, seed=seed), Sequence(0, (3, 1, 2), SamplingParams(temperature=1.0), seed)
    (tree,) = extended(model, [owner], Growth(kind, shape, width=3), Budget(nodes, depth))
    assert len(tree) - 1 <= nodes
    assert tree.deepest <= depth
    if min(nodes, depth) > 0:
        assert len(tree) > 1


@pytest.mark.parametrize("kind", [Proposal.POINT, Proposal.IID])
@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_a_floor_ends_a_draft_behind_the_token_in_doubt(shape: Shape, kind: Proposal) -> None:
    """Below likelier tokens the tree equals the one without a floor: no token is dropped for its own low likelihood."""
    ended = 0
    for seed in range(30):
        model, owner = TableModel(9, seed=seed), Sequence(0, (3, 1, 2), SamplingParams(temperature=1.0), seed)
        (whole,), (tree,) = (extended(model, [owner], Growth(kind, shape), Budget(64, 16, floor)) for floor in (0.0, 0.4))
        kept = [node for node in range(len(whole)) if all(whole.confidences[step] >= 0.4 for step in whole.path(node)[:-1])]
        assert tree.tokens == tuple(whole.tokens[node] for node in kept)
        assert tree.confidences == tuple(whole.confidences[node] for node in kept)
        ended += len(kept) < len(whole)
    assert ended > 10


@pytest.mark.parametrize("kind", [Proposal.POINT, Proposal.IID])
@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_a_draft_ends_where_its_text_would(shape: Shape, kind: Proposal) -> None:
    """Below other tokens the tree equals the one without stop tokens."""
    ended = 0
    for seed in range(40):
        model, ends = TableModel(9, seed=seed), frozenset({seed % 9, (seed + 4) % 9})
        owners = [Sequence(0, (3, 1, 2), SamplingParams(temperature=1.0), seed, stops) for stops in (frozenset[int](), ends)]
        whole, tree = (extended(model, [owner], Growth(kind, shape))[0] for owner in owners)
        kept = [node for node in range(len(whole)) if ends.isdisjoint(path_of(whole, node)[:-1])]
        assert tree.tokens == tuple(whole.tokens[node] for node in kept)
        assert tree.confidences == tuple(whole.confidences[node] for node in kept)
        ended += len(kept) < len(whole)
    assert ended > 10


# vocabularies and caches


@pytest.mark.parametrize("vocab_size", [4, 12])
@pytest.mark.parametrize("kind", [Proposal.COUPLED, *DRAWN])
def test_drafts_and_proposals_keep_to_the_vocabulary_of_the_target(kind: Proposal, vocab_size: int) -> None:
    model, owner = TableModel(7, seed=3), Sequence(0, (3, 1, 2), SamplingParams(temperature=2.0), seed=6)
    (tree,) = extended(model, [owner], Growth(kind, caterpillar(6, 2)), vocab_size=vocab_size)
    assert max(tree.tokens[1:]) < min(vocab_size, 7)
    for probs in tree.proposals.values():
        assert probs.shape == (vocab_size,)
        assert float(probs.sum()) == pytest.approx(1.0)
        assert not bool(probs[7:].any())


@pytest.mark.parametrize("growth", [Growth(shape=shape) for shape in (*SHAPES, (-1, 0, 0, 2, 2, 4))] + [Growth(width=3)], ids=str)
def test_of_a_tree_the_first_children_stay_cached(growth: Growth) -> None:
    """Only they stay: a cache holds one text, which later drafts continue."""
    model, cache = TableModel(9, seed=5), RecordingCache()
    owners = [Sequence(key, (3, 1, key), SamplingParams(temperature=0.5), seed=key) for key in range(3)]
    budgets = [Budget(12, 4), Budget(0, 0), Budget(5, 2)]
    for _ in range(3):
        trees = model.extend(owners, budgets, cache, growth=growth, vocab_size=9, source="m")
        for owner, tree in zip(owners, trees, strict=True):
            held = [token for token, _ in cache.slots.get(owner.key, [])[: cache.length(owner.key)]]
            chain = tree.first_chain().tokens[1:]
            assert held == [*owner.tokens, *chain][: len(held)]
            if len(tree) > 1:
                assert len(held) >= len(owner.tokens)
            cache.truncate(owner.key, len(owner.tokens) - 1)
            owner.commit((1, 2), ())


@pytest.mark.parametrize("growth", [Growth(shape=shape) for shape in SHAPES] + [Growth(width=3)], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_a_draft(growth: Growth, temperature: float) -> None:
    model = TableModel(7)
    model.table[:] = torch.nan
    (tree,) = extended(model, [Sequence(0, (3, 1), SamplingParams(temperature=temperature), seed=1)], growth)
    assert len(tree) == 1
    assert not tree.proposals
