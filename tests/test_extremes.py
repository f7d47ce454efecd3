"""Every sampling parameter at its bounds, alone and with others: the engine goes on."""

from __future__ import annotations

import itertools

import pytest

from paceline.engine.llm import LLM
from paceline.params import SamplingParams

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


def test_what_would_overflow_is_refused() -> None:
    for wrong in ({"repetition_penalty": 5e-324}, {"temperature": 1e-300}, {"logit_bias": {1: 1e30}}):
        with pytest.raises(ValueError, match="1 validation error"):
            SamplingParams(**wrong)
