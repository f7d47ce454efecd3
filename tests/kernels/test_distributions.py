"""Distributions: compiled code equals torch and numpy up to the last bits, and leaves doubtful cases to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from paceline.kernels.choices import distributions
from paceline.kernels.choices.distributions import distribution
from paceline.kernels.native.layout import MOST_KEPT
from paceline.params import Grammar, SamplingParams
from paceline.sampling import Context, LogitsError, probabilities, target_scores
from paceline.sequence import Sequence

SHAPES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"logit_bias": {3: 2.0, 0: -100.0}, "min_tokens": 9},
]
CUTS: list[dict[str, Any]] = [
    {"top_p": 0.95},
    {"top_p": 0.5},
    {"top_p": 0.9999},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": MOST_KEPT, "top_p": 0.99, "min_p": 0.01},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": MOST_KEPT + 1, "top_p": 0.8},
]


def sequence_of(**params: Any) -> Sequence:
    sequence = Sequence(1, (1, 4, 4, 7), SamplingParams(**{"temperature": 0.8, **params}), seed=1, stop_ids=frozenset({2, 5}))
    sequence.commit((3, 4), ())
    return sequence


def row_of(size: int, spread: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


def same(row: torch.Tensor, context: Context) -> None:
    found, wanted = distribution(row, context), probabilities(target_scores(row, context), context.sequence)
    assert found.dtype == np.float64
    assert ((found > 0) == (wanted > 0)).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("size", [1, 9, 10, 97, 4096, 4099])
@pytest.mark.parametrize("spread", [0.3, 2.0, 9.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cut", [{}, *CUTS], ids=str)
def test_the_distribution_equals_that_computed_by_torch(
    size: int, spread: float, shape: dict[str, Any], cut: dict[str, Any]
) -> None:
    """Also for fewer tokens than are biased, banned or penalised: a draft model may have a smaller vocabulary than its target."""
    for temperature in (0.3, 1.0, 1.7):
        sequence = sequence_of(temperature=temperature, **shape, **cut)
        for seed, ancestors in enumerate(((), (6,), (6, 6, 4))):
            same(row_of(size, spread, seed), Context(sequence, ancestors))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.5, 2.0, -3.0, 40.0, -1e4, -np.inf]), min_size=2, max_size=40),
    st.sampled_from(CUTS),
    st.sampled_from([0.01, 0.7, 1.0, 50.0]),
)
def test_ties_and_extremes(values: list[float], cut: dict[str, Any], temperature: float) -> None:
    row = torch.tensor(values)
    if row.max() > -torch.inf:
        same(row, Context(sequence_of(temperature=temperature, **cut)))


def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows with each use of the torch implementation."""
    asked: list[int] = []
    monkeypatch.setattr(distributions, "probabilities", lambda *given: asked.append(1) or probabilities(*given))
    return asked


@pytest.mark.parametrize("cut", CUTS[:-1], ids=str)
def test_common_cuts_are_computed_by_compiled_code_alone(cut: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch)
    for shape in SHAPES:
        distribution(row_of(500, 5.0), Context(sequence_of(**shape, **cut), (6,)))
    assert not asked


def test_compiled_code_computes_top_p_of_flat_rows_and_of_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch)
    for seed in range(20):
        for top_p in (0.2, 0.5, 0.9, 0.99):
            same(row_of(5000, 0.1, seed), Context(sequence_of(top_p=top_p)))
            same(row_of(5000, 1.0, seed).round(decimals=1), Context(sequence_of(top_p=top_p, temperature=3.0)))
    same(torch.zeros(4), Context(sequence_of(top_p=0.5)))
    assert not asked


@pytest.mark.parametrize("place", [0, 3, 30, 300, 1500])
def test_a_cumulated_share_that_meets_top_p_is_left_to_torch(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bits of sums differ, and one token more or less would change the law."""
    asked, row = told(monkeypatch), row_of(2000, 0.3)
    met = float(np.sort(probabilities(row, sequence_of()))[::-1].cumsum()[place])
    for beside in (-1e-7, -1e-12, 0.0, 1e-12, 1e-7):
        same(row, Context(sequence_of(temperature=1.0, top_p=met + beside)))
    assert len(asked) == 3


def test_a_token_that_holds_just_top_p_holds_it_alone() -> None:
    sequence = sequence_of(temperature=1.0, top_p=0.5)
    same(torch.tensor([0.5, 0.25, 0.25]).log(), Context(sequence))
    assert distribution(torch.tensor([0.5, 0.25, 0.25]).log(), Context(sequence)).tolist() == [1.0, 0.0, 0.0]


def test_a_distribution_beyond_compiled_code_is_computed_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch)
    # a top-k that is too large; no compiled code at all
    same(row_of(500, 1.0), Context(sequence_of(top_k=MOST_KEPT + 1, top_p=0.5)))
    monkeypatch.setattr(distributions, "available", lambda *kernels: False)
    same(row_of(500, 5.0), Context(sequence_of(top_p=0.5)))
    assert len(asked) == 2


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cut", [{}, *CUTS], ids=str)
def test_a_distribution_under_a_grammar_keeps_to_it_with_penalties_applied_once(
    shape: dict[str, Any], cut: dict[str, Any]
) -> None:
    """The grammar is applied outside compiled code, to scores that are already penalised: penalties must not be applied again."""

    class Even:
        def allowed(self, ancestors: tuple[int, ...]) -> np.ndarray:
            return np.arange(500) % 2 == len(ancestors) % 2

    sequence = sequence_of(grammar=Grammar(kind="regex", text="a"), **shape, **cut)
    sequence.constraint = Even()
    for ancestors in ((), (6,)):
        same(row_of(500, 3.0), Context(sequence, ancestors))
        assert not distribution(row_of(500, 3.0), Context(sequence, ancestors))[1 - len(ancestors) :: 2].any()


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 3}], ids=str)
@pytest.mark.parametrize("values", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]], ids=str)
def test_what_is_no_number_has_no_distribution(values: list[float], cut: dict[str, Any]) -> None:
    with pytest.raises(LogitsError), np.errstate(invalid="ignore"):
        distribution(torch.tensor(values), Context(sequence_of(**cut)))
