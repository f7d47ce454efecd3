"""Every sampling parameter at its bounds, alone and in pairs: the engine raises no error."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from paceline.engine.llm import LLM
from paceline.params import SamplingParams
from paceline.sequence import Sequence

EXTREMES = {
    "temperature": (1e-6, 100.0),
    "top_k": (1, 2**31 - 1),
    "top_p": (1e-300, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "logit_bias": ({5: -100.0, 6: -100.0}, {5: 100.0}),
    "logprobs": (0, 20),
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM()


@pytest.mark.parametrize("pair", list(itertools.combinations(EXTREMES, 2)), ids="-".join)
def test_extremes_in_pairs(llm: LLM, pair: tuple[str, str]) -> None:
    asked = [
        SamplingParams(max_tokens=6, seed=1, **{"temperature": 1.0, pair[0]: first, pair[1]: second})
        for first in EXTREMES[pair[0]]
        for second in EXTREMES[pair[1]]
    ]
    for answer in llm.generate(["Once upon a time"] * len(asked), asked):
        assert len(answer.token_ids) <= 6
        assert answer.finish_reason in ("length", "stop")


DRAWN = [
    ("model", "rejection"),
    ("model", "block"),
    ("model:width=2", "spechub"),
    ("model:width=2", "multi-round"),
    ("model:width=3", "multi-round:replacement=with"),
    ("model:tree=static", "multi-round"),
    ("model:samples=3", "k-seq"),
]
SHARP = [
    *({"temperature": temperature} for temperature in (1e-6, 1e-4, 0.01, 0.02, 0.05, 0.07, 100.0)),
    {"logit_bias": {5: 100.0}},
    {"logit_bias": {5: 30.0}, "temperature": 0.3},
    {"repetition_penalty": 0.01},
    {"top_p": 1e-300},
    {"min_p": 1.0},
]
"""Rows where one token has nearly all the mass: siblings must still follow the distribution recorded for them."""


@pytest.mark.parametrize(("draft", "rule"), DRAWN)
def test_drawn_drafts_of_very_sharp_rows_are_verified_without_error(draft: str, rule: str) -> None:
    asked = [
        SamplingParams(**{"temperature": 1.0, "max_tokens": 24, "seed": seed, **sharp}) for sharp in SHARP for seed in (0, 1)
    ]
    answers = LLM(draft=draft, verify=rule, batch=8).generate(["1 2 3", "Lily and Tom saw a"] * len(SHARP), asked)
    assert all(answer.finish_reason in ("length", "stop") for answer in answers)


def test_spechub_agrees_on_the_hub_where_two_logits_differ_and_their_probabilities_do_not() -> None:
    """Drafting and verifying both take the first of two tokens whose probabilities are equal at a high temperature."""
    llm = LLM(draft="model:width=2", verify="spechub")
    prompt, (part,) = llm.encode("Once upon a time"), llm.engine.speculative.drafter.parts
    sequence = Sequence(10**9, tuple(prompt), SamplingParams(), 0)
    row = part.model.logits_after([(sequence, tuple(prompt))], part.model.new_cache())[0].numpy()
    level = np.float32(20.0)
    first, second = sorted(np.argsort(-row)[:2].tolist())
    bias = {first: lifted(row[first], level), second: lifted(row[second], np.nextafter(level, np.float32(99)))}
    for seed in range(6):
        llm.generate([prompt], SamplingParams(temperature=100.0, max_tokens=4, seed=seed, logit_bias=bias))


def lifted(value: np.float32, to: np.float32) -> float:
    """The float32 to add to `value` so that the sum is exactly `to`."""
    for step in range(-50, 51):
        added = np.float32(to - value) + np.float32(step) * np.spacing(np.float32(to - value))
        if value + added == to:
            return float(added)
    raise AssertionError("no float32 lifts it there")


def test_what_would_overflow_is_refused() -> None:
    for wrong in ({"repetition_penalty": 5e-324}, {"temperature": 1e-300}, {"logit_bias": {1: 1e30}}):
        with pytest.raises(ValueError, match="1 validation error"):
            SamplingParams(**wrong)
