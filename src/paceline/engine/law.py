"""Law: do drawn tokens have the target's distribution? A test for rules whose tokens differ from those of plain decoding.

Every token is placed in the target's distribution behind the text before it, the likelier tokens first: its rank is the
probability of what is likelier, and a random share of its own. Under the law ranks are independent uniform numbers, whatever
the contexts, so their largest deviation from uniform has a bound that holds for any number of them. How many there are is fixed
beforehand: prompts are decoded again, with other seeds, where texts end early.

Source: the probability integral transform in its randomised form (Rosenblatt 1952; Brockwell 2007); the bound is that of
Dvoretzky, Kiefer and Wolfowitz with Massart's constant (1990).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass
from itertools import count
from math import log, sqrt

import numpy as np

from paceline.engine.llm import LLM, Completion, Prompt
from paceline.noise import stream, uniform
from paceline.params import SamplingParams
from paceline.sampling import Context, probabilities, target_scores
from paceline.sequence import Sequence

FALSE_ALARM = 1e-6
"""How often a rule that keeps the law fails the test."""
TURNS = 3
"""How many times as many tokens are drawn as a comparison of texts would need: a distribution shows itself slowly."""


@dataclass(frozen=True)
class Draws:
    """One prompt decoded once. ranks: one per token, each between 0 and 1."""

    prompt: Prompt
    temperature: float
    speculative: Completion
    ranks: tuple[float, ...]


@dataclass(frozen=True)
class Fit:
    """How far the ranks of `tokens` tokens are from uniform, and how far they may be."""

    tokens: int
    distance: float

    @property
    def bound(self) -> float:
        return sqrt(log(2 / FALSE_ALARM) / (2 * self.tokens))

    @property
    def holds(self) -> bool:
        return self.distance < self.bound


def fit(ranks: Many[float]) -> Fit:
    """The Kolmogorov distance of ranks from the uniform distribution; there is at least one."""
    found, steps = np.sort(np.asarray(ranks)), np.arange(len(ranks) + 1) / len(ranks)
    return Fit(len(found), float(max((steps[1:] - found).max(), (found - steps[:-1]).max())))


def draws(llm: LLM, prompts: Many[Prompt], params: SamplingParams) -> Iterator[Draws]:
    """Decode the prompts in turn, every time with another seed, until `TURNS` times as many tokens as they may have together
    were drawn."""
    seed, left = params.seed or 0, TURNS * len(prompts) * params.max_tokens
    for run in count():
        if not left:
            return
        prompt = prompts[run % len(prompts)]
        change = {"seed": (seed + run) % 2**64, "max_tokens": min(params.max_tokens, left)}
        answer = llm.generate(prompt, params.model_copy(update=change))[0]
        left -= len(answer.token_ids)
        yield Draws(prompt, params.temperature, answer, tuple(_ranks(llm, prompt, params, answer)))


def _ranks(llm: LLM, prompt: Prompt, params: SamplingParams, answer: Completion) -> Iterator[float]:
    """One rank per token, against what plain decoding computes behind the same text."""
    sequence = Sequence(0, tuple(llm.encode(prompt)), params, answer.seed, llm.engine.stop_ids(params))
    cache, fresh = llm.target.new_cache(), sequence.prompt
    for token in answer.token_ids:
        logits = llm.target.logits_after([(sequence, fresh)], cache)[0]
        probs = probabilities(target_scores(logits, Context(sequence)))
        likelier = probs[probs > probs[token]].sum() + probs[:token][probs[:token] == probs[token]].sum()
        share = uniform(stream(sequence.seed, "check"), len(sequence.tokens))
        yield float(likelier + share * probs[token])
        sequence.commit((token,), ("",))
        fresh = (token,)
