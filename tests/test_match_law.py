"""The law of `match`: the joint law of three tokens, for every transform and kind of draft, against the enumerated law.

Per transform 12,000 different seeds, 3,000 for each kind of draft (200,000 under the marker `full`): joint chi-square over
all outcomes and a test of the mean log-probability, with a false-alarm rate of 1e-6 for both together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

import reference
from fakes import BlindChainDrafter, BlindTreeDrafter, TableModel, coupled
from laws import PROMPT, Outcome, bulk, chi_square, drawn, obeys, surprise
from paceline.drafters.base import Drafter
from paceline.drafters.none import NullDrafter
from paceline.params import SamplingParams

SEEDS, FULL_SEEDS = 3_000, 50_000
TRANSFORMS: dict[str, SamplingParams] = {
    "temperature": SamplingParams(temperature=0.8),
    "top-k": SamplingParams(temperature=1.0, top_k=3),
    "top-p": SamplingParams(temperature=1.2, top_p=0.8),
    "min-p": SamplingParams(temperature=1.1, min_p=0.15),
    "penalties": SamplingParams(temperature=0.9, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.6),
    "logit bias": SamplingParams(temperature=1.0, logit_bias={0: 1.5, 3: -2.0}),
    "all": SamplingParams(
        temperature=0.9,
        top_k=4,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        logit_bias={1: 0.7},
    ),
}
DRAFTS: dict[str, Callable[[TableModel], Drafter]] = {
    "none": lambda model: NullDrafter(),
    "chain": BlindChainDrafter,
    "tree": BlindTreeDrafter,
    "coupled": lambda model: coupled(model, depth=2, width=2),
}
MODELS = {"temperature": 6, "top-k": 6, "top-p": 5, "min-p": 6, "penalties": 4, "logit bias": 5, "all": 6}
"""Vocabulary per transform."""


def model_of(transform: str) -> TableModel:
    return TableModel(MODELS[transform], sharpness=1.5, seed=len(transform))


@cache
def law_of(transform: str) -> dict[Outcome, float]:
    model = model_of(transform)
    return reference.law(lambda tokens: model.row(tokens).double().numpy(), PROMPT, TRANSFORMS[transform], 3)


def check(transform: str, seeds: int) -> None:
    model, pooled = model_of(transform), []
    for place, (name, make) in enumerate(DRAFTS.items()):
        # every kind of draft gets seeds of its own, so that the pool is one sample
        with bulk():
            outcomes = drawn(model, make(model), TRANSFORMS[transform], range(place * 10**6, place * 10**6 + seeds))
        assert obeys(outcomes, law_of(transform)), name
        pooled += outcomes
    assert obeys(pooled, law_of(transform))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_three_tokens_have_the_joint_law_of_the_target(transform: str) -> None:
    assert abs(sum(law_of(transform).values()) - 1) < 1e-12
    check(transform, SEEDS)


@pytest.mark.full
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_three_tokens_have_the_joint_law_of_the_target_at_length(transform: str) -> None:
    check(transform, FULL_SEEDS)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_same_seeds_give_the_same_tokens_whatever_drafts(transform: str) -> None:
    model = model_of(transform)
    with bulk():
        plain, *others = (drawn(model, make(model), TRANSFORMS[transform], range(150)) for make in DRAFTS.values())
    assert all(other == plain for other in others)
    assert len(set(plain)) > 10


@pytest.mark.parametrize("transform", ["temperature", "all"])
def test_bulk_computation_draws_what_the_engine_draws(transform: str) -> None:
    model = model_of(transform)
    for make in DRAFTS.values():
        slow = drawn(model, make(model), TRANSFORMS[transform], range(60))
        with bulk():
            assert drawn(model, make(model), TRANSFORMS[transform], range(60)) == slow


def test_the_tests_of_a_law_reject_a_neighbouring_law() -> None:
    """Their power, at 20,000 seeds."""
    model = model_of("temperature")
    with bulk():
        outcomes = drawn(model, NullDrafter(), TRANSFORMS["temperature"], range(20_000))

    def off(**change: float) -> dict[Outcome, float]:
        params = TRANSFORMS["temperature"].model_copy(update=change)
        return reference.law(lambda tokens: model.row(tokens).double().numpy(), PROMPT, params, 3)

    assert obeys(outcomes, off(temperature=0.8))
    assert surprise(outcomes, off(temperature=0.8 * 1.03)) < 1e-6
    assert chi_square(outcomes, off(temperature=0.8 * 1.1)) < 1e-6
    assert chi_square(outcomes, off(logit_bias={2: 0.2})) < 1e-6
