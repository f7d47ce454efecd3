"""Log-probabilities of tokens: of the answer and of the prompt, under any drafter, chunking and preemption."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from paceline.budget import Budget
from paceline.compose import build_drafter
from paceline.drafters.base import Surroundings
from paceline.drafting import Work
from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.engine.scheduler import Limits
from paceline.kernels.choices.logprobs import token_logprobs as compiled_token_logprobs
from paceline.logprobs import token_logprobs
from paceline.models.selfcheck import Identity, best_backend
from paceline.params import SamplingParams
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.verifiers.match import Match
from stepping import NeverEnds
from tiny import tiny_model

PROMPTS = [[5, 9, 200, 31, 7, 7, 40], [300], [12, 13, 12, 13, 12, 13, 12]]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(draft="none")


def run(llm: LLM, draft: str, params: SamplingParams, limits: Limits) -> list[Sequence]:
    llm.use(draft)
    engine = Engine(llm.engine.speculative, llm.tokenizer, limits)
    sequences = [engine.add(prompt, params) for prompt in PROMPTS]
    while engine.has_work:
        engine.step()
    return sequences


def told_by_hand(llm: LLM, text: list[int]) -> list[np.ndarray]:
    """float64 [V] log-probabilities behind every prefix of a text, one forward each."""
    rows = []
    for end in range(1, len(text)):
        sequence = Sequence(0, tuple(text[:end]), SamplingParams(), seed=0)
        logits = llm.target.logits_after([(sequence, sequence.prompt)], llm.target.new_cache())[0]
        rows.append(logits.double().log_softmax(-1).numpy())
    return rows


@pytest.mark.parametrize("draft", ["none", "ngram", "lookahead", "model:paceline-14m-draft,width=2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_token_has_its_own_forward_s_log_probability(llm: LLM, draft: str, temperature: float) -> None:
    params = SamplingParams(max_tokens=12, temperature=temperature, seed=3, logprobs=3, prompt_logprobs=2, presence_penalty=1.0)
    # chunks of three tokens, and room for two of the three texts at a time
    for sequence in run(llm, draft, params, Limits(batch=3, chunk=3, cache_tokens=40)):
        rows = told_by_hand(llm, sequence.tokens)
        size = len(sequence.prompt)
        assert sequence.prompt_logprobs[0] is None
        assert len(sequence.prompt_logprobs) == size
        assert len(sequence.logprobs) == sequence.generated_tokens
        found = [*sequence.prompt_logprobs[1:], *sequence.logprobs]
        for row, token, one in zip(rows, sequence.tokens[1:], found, strict=True):
            assert one is not None
            assert one.token == token
            assert one.logprob == pytest.approx(row[token], abs=1e-5)
            assert one.rank == 1 + int((row > row[token]).sum())
            assert len(one.top) == (3 if one in sequence.logprobs else 2)
            assert [lp for _, lp in one.top] == pytest.approx(sorted(row, reverse=True)[: len(one.top)], abs=1e-5)


def test_log_probabilities_are_absent_where_not_asked_for(llm: LLM) -> None:
    for sequence in run(llm, "ngram", SamplingParams(max_tokens=4), Limits()):
        assert sequence.logprobs == []
        assert sequence.prompt_logprobs == []


def test_tied_tokens_share_a_rank_and_are_listed_by_id() -> None:
    one = token_logprobs(np.array([0.0, 2.0, 2.0, -1.0], np.float32), 2, 4)
    total = math.log(2 * math.exp(2) + 1 + math.exp(-1))
    assert one.rank == 1
    assert one.logprob == pytest.approx(2 - total)
    assert [token for token, _ in one.top] == [1, 2, 0, 3]
    assert token_logprobs(np.zeros(3, np.float32), 0, 0).top == ()


@pytest.mark.parametrize(
    "tells",
    [token_logprobs, lambda row, token, count: compiled_token_logprobs(row[None], [token], count)[0]],
    ids=["numpy", "compiled"],
)
def test_of_many_tied_tokens_the_lowest_ids_are_listed(tells: Any) -> None:
    row = np.zeros(1000, np.float32)
    row[7] = 1.0
    assert [token for token, _ in tells(row, 7, 5).top] == [7, 0, 1, 2, 3]
    zeros = np.array([-0.0, 0.0, -1.0, -0.0, 0.0], np.float32)
    assert [token for token, _ in tells(zeros, 0, 4).top] == [0, 1, 3, 4]


def no_models(path: str) -> Any:
    raise AssertionError(path)


@pytest.mark.parametrize("kind", ["llama", "falcon", "bloom", "qwen3_next", "mamba"])
def test_every_backend_tells_prompts(kind: str) -> None:
    reference = tiny_model(kind)
    model = best_backend(tiny_model(kind), Identity(kind, 128, frozenset()))
    prompts = [(5, 9, 31, 7, 7, 40), (30, 31, 30, 31, 30)]
    drafter = build_drafter("ngram", Surroundings(model, None, no_models))  # pyright: ignore[reportArgumentType]
    speculative = Speculative(model, drafter, Match(), FixedPolicy())
    params = SamplingParams(prompt_logprobs=1, logprobs=0)
    sequences = [Sequence(key, prompt, params, seed=0) for key, prompt in enumerate(prompts)]
    # the first prompt in two chunks beside the whole second one, then both with drafts
    feeds = [[(0, 4), (0, 5)], [(4, 2), (5, 1)], [(6, 1), (6, 1)]]
    for step in feeds:
        starts = [speculative.cache.length(sequence.key) for sequence in sequences]
        work = [
            Work(sequence, start, min(count, len(sequence.tokens) - start), Budget(4, 4))
            for sequence, start, (_, count) in zip(sequences, starts, step, strict=True)
        ]
        speculative.step([item for item in work if item.count], NeverEnds())
    for sequence in sequences:
        with torch.inference_mode():
            rows = reference(torch.tensor([sequence.tokens])).logits[0].double().log_softmax(-1)
        found = [*sequence.prompt_logprobs[1:], *sequence.logprobs]
        for row, token, one in zip(rows, sequence.tokens[1:], found, strict=False):
            assert one is not None
            assert one.logprob == pytest.approx(float(row[token]), abs=2e-4)
        assert len(sequence.prompt_logprobs) == len(sequence.prompt)
        assert len(sequence.logprobs) == sequence.generated_tokens > 0
