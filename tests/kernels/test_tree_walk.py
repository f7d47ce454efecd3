"""Tree walk: compiled code chooses along trees like `sampling.choose`, or reports doubt."""

from __future__ import annotations

from collections.abc import Sequence as Many
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from paceline import noise
from paceline.kernels.choices import tree_walk
from paceline.kernels.choices.tree_walk import chosen, is_compiled, walked
from paceline.kernels.native.layout import MOST_KEPT
from paceline.params import SamplingParams
from paceline.sampling import Context, LogitsError, choose
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal
from paceline.verifiers import base
from paceline.verifiers.base import follow_choices

CUTS = [
    {}, {"top_k": 1}, {"top_k": 40}, {"top_p": 0.9}, {"top_p": 0.3}, {"top_p": 0.9999}, {"min_p": 0.05}, {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.95}, {"top_k": 5, "top_p": 0.5, "min_p": 0.1}, {"top_k": 256, "top_p": 0.99}, {"top_k": 10**6},
]  # fmt: skip
SHAPES = [
    {}, {}, {"logit_bias": {3: 2.5, 7: -100.0, 8: 100.0}}, {"repetition_penalty": 1.7}, {"repetition_penalty": 0.6},
    {"presence_penalty": 0.7}, {"frequency_penalty": -0.45}, {"presence_penalty": -1.1, "frequency_penalty": 0.3},
    {"min_tokens": 6},
    {"repetition_penalty": 1.15, "presence_penalty": 0.2, "frequency_penalty": 0.1, "logit_bias": {2: 0.1}, "min_tokens": 3},
]  # fmt: skip


def the_long_way(sequence: Sequence, tree: DraftTree, logits: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The expected walk, one node after the other, without the tested code."""
    path, tokens, node = list[int](), list[int](), 0
    while True:
        tokens += choose(logits[node][None], [Context(sequence, tuple(tokens))])
        if tokens[-1] not in tree.children[node]:
            return tuple(path), tuple(tokens)
        node = tree.children[node][tokens[-1]]
        path.append(node)


def sequence_of(seed: int = 3, size: int = 5, **params: object) -> Sequence:
    return Sequence(seed, tuple(range(size)), SamplingParams.model_validate(params), seed)


def row_of(size: int, spread: float, seed: int) -> torch.Tensor:
    return torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("size", [1, 7, 65, 1000, 32003])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_compiled_choices_from_one_row_equal_those_of_sampling_choose(size: int, cuts: dict[str, float]) -> None:
    doubts, root = 0, DraftTree.root(4)
    cases = [
        (spread, temperature, seed) for spread in (0.0, 1.0, 4.0) for temperature in (0.0, 0.3, 1.0, 1.7) for seed in range(6)
    ]
    for spread, temperature, seed in cases:
        one, row = sequence_of(seed, temperature=temperature, **cuts), row_of(size, spread, seed)
        (found,) = walked([one], [root], [row])
        doubts += found is None
        if found is not None:
            assert found == the_long_way(one, root, row)
    # for equal scores a sum decides whether all are kept: that is doubtful if a whole number of them makes up top-p
    assert doubts <= 1


@pytest.mark.parametrize(("lead", "sure"), [(-0.5, True), (-5e-6, False), (0.0, False), (5e-6, False), (0.5, True)])
def test_compiled_code_makes_no_choice_between_two_tokens_that_nearly_tie(lead: float, sure: bool) -> None:
    """Compiled code sums the noise in another order, and the last bits must not decide."""
    one, root = sequence_of(temperature=1.0), DraftTree.root(4)
    first, second, _ = noise.gumbel(one.seed, len(one.tokens), np.arange(3)).tolist()
    row = torch.tensor([[0.0, first - second + lead, -30.0]])
    assert walked([one], [root], [row]) == [the_long_way(one, root, row) if sure else None]
    if sure:
        assert the_long_way(one, root, row) == ((), (int(lead > 0),))


@pytest.mark.parametrize(("beside", "sure"), [(-1e-4, True), (-1e-6, False), (0.0, False), (1e-6, False), (1e-4, True)])
def test_compiled_code_makes_no_choice_where_a_share_just_meets_top_p(beside: float, sure: bool) -> None:
    """The second likeliest token is drawn, which top-p keeps only if the likeliest holds less than top-p."""
    root, row = DraftTree.root(4), torch.tensor([[0.5, 0.3, 0.2]]).log()
    seed = next(seed for seed in range(99) if the_long_way(sequence_of(seed, temperature=1.0), root, row) == ((), (1,)))
    one = sequence_of(seed, temperature=1.0, top_p=0.5 + beside)
    assert walked([one], [root], [row]) == [((), (int(beside > 0),)) if sure else None]
    if sure:
        assert the_long_way(one, root, row) == ((), (int(beside > 0),))


@given(data=st.data(), size=st.integers(1, 300), seed=st.integers(0, 2**64 - 1), length=st.integers(1, 2**20))
@settings(max_examples=200, deadline=None)
def test_compiled_choices_equal_sampling_choose_whatever_numbers_a_row_holds(
    data: st.DataObject, size: int, seed: int, length: int
) -> None:
    """Equal logits, both zeros, banned tokens, numbers that overflow in the division: the choice is the same."""
    numbers = st.sampled_from([0.0, -0.0, 1.0, 1.0000001, -3.5, 20.0, 88.0, -torch.inf, 3e38]) | st.floats(-30, 30, width=32)
    row = torch.tensor([data.draw(st.lists(numbers, min_size=size, max_size=size))])
    temperature = data.draw(st.sampled_from([0.0, 1e-6, 0.1, 0.7, 1.0, 3.0, 100.0]))
    shape = data.draw(st.sampled_from([one for one in SHAPES if size > 8 or not one]))
    one = sequence_of(seed, temperature=temperature, **data.draw(st.sampled_from(CUTS)), **shape)
    one.generated_counts.update(data.draw(st.lists(st.integers(0, size - 1), max_size=5)))
    one.tokens = list(range(length)) if length < 100 else [0] * length
    (found,) = walked([one], [DraftTree.root(4)], [row])
    if found is not None:
        assert found == the_long_way(one, DraftTree.root(4), row)


def forest(count: int, size: int, seed: int) -> tuple[list[Sequence], list[DraftTree], list[torch.Tensor]]:
    """Trees that mostly follow the choices, with other branches and equal siblings, for sequences of all kinds of parameters."""
    draw, sequences, trees, logits = Random(seed), list[Sequence](), list[DraftTree](), list[torch.Tensor]()
    generator = torch.Generator().manual_seed(seed)
    for key in range(count):
        nodes = draw.randrange(1, 12)
        params = {"temperature": draw.choice([0.0, 0.8]), **draw.choice(CUTS), **draw.choice(SHAPES)}
        prompt = tuple(draw.randrange(size) for _ in range(draw.randrange(1, 9)))
        one = Sequence(key, (*prompt, 1), SamplingParams.model_validate(params), key + seed, frozenset({5, 9, 11}))
        one.commit((*[draw.randrange(size) for _ in range(draw.randrange(5))], 1), ())
        # wider than the vocabulary, like the output of a kernel
        rows = (torch.randn(nodes, size + 16, generator=generator) * 3)[:, :size]
        tokens, parents = [1], [-1]
        for node in range(1, nodes):
            parent = draw.randrange(max(0, node - 3), node)
            above = [tokens[at] for at in DraftTree(tuple(tokens), tuple(parents), Proposal.IID).path(parent)]
            right = choose(rows[parent][None], [Context(one, tuple(above))])[0]
            parents.append(parent)
            tokens.append(right if draw.random() < 0.8 else draw.randrange(size))
        probes = draw.randrange(2) if nodes > 2 else 0
        sequences.append(one)
        trees.append(DraftTree(tuple(tokens), tuple(parents), Proposal.IID, probes=probes))
        logits.append(rows)
    return sequences, trees, logits


@pytest.mark.parametrize("seed", range(20))
def test_compiled_walks_of_trees_equal_those_of_sampling_choose(seed: int) -> None:
    sequences, trees, logits = forest(9, 300, seed)
    expected = [the_long_way(*one) for one in zip(sequences, trees, logits, strict=True)]
    found = walked(sequences, trees, logits)
    assert [one for one in found if one] == [wanted for one, wanted in zip(found, expected, strict=True) if one]
    assert len([one for one in found if one is None]) <= 1
    verdicts = follow_choices(sequences, trees, logits)
    assert [(verdict.path, verdict.tokens) for verdict in verdicts] == expected
    assert max(len(path) for path, _ in expected) > 1


@pytest.mark.parametrize("seed", range(12))
def test_walks_left_in_doubt_are_completed_by_sampling_choose(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences, trees, logits = forest(9, 50, seed)
    expected = [the_long_way(*one) for one in zip(sequences, trees, logits, strict=True)]
    honest = base.walked
    monkeypatch.setattr(base, "walked", lambda *told: [None if place % 3 else walk for place, walk in enumerate(honest(*told))])
    assert [(one.path, one.tokens) for one in follow_choices(sequences, trees, logits)] == expected


def test_without_compiled_code_trees_are_walked_by_sampling_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences, trees, logits = forest(6, 50, 2)
    expected = follow_choices(sequences, trees, logits)
    monkeypatch.setattr(tree_walk, "available", lambda *kernels: False)
    assert follow_choices(sequences, trees, logits) == expected


@pytest.mark.parametrize("odd", [torch.nan, -torch.nan])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_numbers_is_told_if_it_is_reached(odd: float, temperature: float) -> None:
    one, rows = sequence_of(temperature=temperature), torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    (first,) = choose(rows[:1], [Context(one)])
    reached, passed = DraftTree.chain(4, (first, 7), "x"), DraftTree.chain(4, (first + 1, 7), "x")
    rows[1][5] = odd
    assert follow_choices([one], [passed], [rows])[0].tokens == (first,)
    with pytest.raises(LogitsError) as raised:
        follow_choices([sequence_of(9), one], [DraftTree.root(4), reached], [rows[2:], rows])
    assert raised.value.sequence is one


def test_grammars_large_top_k_and_float64_rows_are_not_chosen_by_compiled_code() -> None:
    row = torch.zeros(1, 4 * MOST_KEPT)
    assert is_compiled(sequence_of(temperature=1.0, top_k=MOST_KEPT, top_p=0.5, min_p=0.1), row)
    assert not is_compiled(sequence_of(temperature=1.0, top_k=MOST_KEPT + 1), row)
    assert is_compiled(sequence_of(temperature=1.0, top_k=MOST_KEPT + 1), row[:, :MOST_KEPT])
    assert is_compiled(sequence_of(repetition_penalty=1.1), row)
    assert not is_compiled(sequence_of(grammar={"kind": "regex", "text": "a"}), row)
    assert not is_compiled(sequence_of(), row.double())
    assert not is_compiled(sequence_of(), torch.zeros(8, 2).T)


class Odd:
    """A grammar of odd tokens."""

    def allowed(self, ancestors: Many[int]) -> np.ndarray:
        return np.arange(600) % 2 == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("refused", [False, True])
def test_single_rows_are_chosen_from_as_by_sampling_choose(
    temperature: float, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refused:
        monkeypatch.setattr(tree_walk, "available", lambda *kernels: False)
    rows = torch.randn(5, 200, generator=torch.Generator().manual_seed(3)) * 3
    # penalties hit the tokens that would otherwise be chosen
    rows[:, :5] += torch.tensor([14.0, 12.0, 11.0, 10.0, 9.0])
    whole = [
        sequence_of(8, temperature=temperature),
        sequence_of(9, temperature=temperature, top_p=0.8, frequency_penalty=2.0, presence_penalty=2.0),
    ]
    spelled = sequence_of(7, temperature=temperature, grammar={"kind": "regex", "text": "a*"}, presence_penalty=0.5)
    spelled.constraint = Odd()
    wide = sequence_of(7, temperature=1.0, top_k=MOST_KEPT + 1)
    rows = torch.cat([rows, rows, rows], 1)
    for kinds in (whole, [*whole, spelled], [*whole, spelled, wide]):
        contexts = [Context(kinds[at % len(kinds)], tuple(range(at))) for at in range(5)]
        assert chosen(rows, contexts) == choose(rows, contexts)
    free = [Context(context.sequence) for context in contexts]
    assert refused or chosen(rows, free) != chosen(rows, contexts)


@pytest.mark.parametrize("shape", [{}, {"repetition_penalty": 2.0, "logit_bias": {3: 1.0}}])
def test_rows_are_only_read(shape: dict[str, object]) -> None:
    one, row = sequence_of(temperature=1.0, top_k=40, top_p=0.9, **shape), row_of(4096, 3.0, 2)
    kept = row.clone()
    walked([one], [DraftTree.root(4)], [row])
    assert np.array_equal(kept.numpy(), row.numpy())
