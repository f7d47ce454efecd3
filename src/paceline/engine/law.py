"""Law: do drawn tokens have the target's distribution? A test for verifiers whose tokens differ from those of plain decoding.

Every token is placed in the target's distribution behind the text before it, the likelier tokens first: its rank is the total
probability of the likelier tokens plus a random share of its own. Under the law ranks are independent uniform numbers, whatever
the contexts, so their largest deviation from uniform has a bound that holds for any number of them. How many there are is fixed
beforehand: prompts are decoded again, with other seeds, where texts end early.

Where one token is nearly certain its ranks are spread over all numbers, and a verifier that takes it too often hardly moves them.
So a second test sums up how much more often the likeliest token comes than its probability: a martingale, with a bound that
follows from its variance. And a single token that is impossible under the law proves a fault.

Source: the probability integral transform in its randomised form (Rosenblatt 1952; Brockwell 2007); the bound of the ranks is
that of Dvoretzky, Kiefer and Wolfowitz with Massart's constant (1990), the other that of Freedman (1975).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass, replace
from itertools import count
from math import exp, log, sqrt

import numpy as np
import torch

from paceline.engine.llm import LLM, Completion, Prompt
from paceline.engine.noted_drafts import noted_drafts, rank_of
from paceline.models.base import LanguageModel
from paceline.noise import stream, uniform
from paceline.params import SamplingParams
from paceline.sampling import Context, narrowed, probabilities, shaped, target_scores
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree

FALSE_ALARM = 1e-6
"""Probability that a verifier that keeps the law fails here; a user's own fails in `small_law` as often again."""
_BOUNDS = 3
"""Tests that share this probability: of ranks, of the likeliest tokens, and of drafts."""
TURNS = 3
"""How many times as many tokens are drawn as a comparison of texts would need: testing a distribution takes more."""
MOST = 4096
"""Most tokens that are drawn: more would add little, and each is ranked in the target's whole vocabulary."""
_WIDE = 0.1
"""Where the bound of the ranks is above this, the sample is so small that hardly any verifier is refused."""
_RATES = tuple(2.0**power for power in range(2, -4, -1))
"""Parameters of Freedman's inequality, each with its share of the false alarms: which one is sharpest depends on a variance that
is known only once texts are drawn."""
_ROUNDING = 1e-5
"""Largest relative rounding error of probabilities at the thresholds of top-p and min-p."""
_ROWS = 64
"""Tokens that are ranked in one forward: so many rows of logits are held at once."""


@dataclass(frozen=True)
class Draws:
    """One prompt decoded once. ranks: one per token, each between 0 and 1. excess, variance: how much more often the likeliest
    token came than expected, and the variance of that under the law. impossible: tokens that cannot come under the law, counted
    where the target's rows have the same bits in every forward. drafted: ranks of drafted tokens in their proposals."""

    prompt: Prompt
    temperature: float
    speculative: Completion
    ranks: tuple[float, ...]
    excess: float
    variance: float
    impossible: int
    drafted: tuple[float, ...] = ()


@dataclass(frozen=True)
class Fit:
    """How far the ranks of `tokens` tokens are from uniform, and how far they may be; the rest as in `Draws`, summed up.
    drafted, drafted_distance: number and distance of the drafted tokens' ranks in their proposals."""

    tokens: int
    distance: float
    excess: float = 0.0
    variance: float = 0.0
    impossible: int = 0
    drafted: int = 0
    drafted_distance: float = 0.0

    @property
    def bound(self) -> float:
        """What `distance` stays below under the law."""
        return _bound(self.tokens)

    @property
    def drafted_bound(self) -> float:
        """What `drafted_distance` stays below for true proposals, where any tokens were drafted."""
        return _bound(self.drafted)

    @property
    def drafts_hold(self) -> bool:
        """Whether drafted tokens may have been drawn from their recorded proposals."""
        return not self.drafted or self.drafted_distance < self.drafted_bound

    @property
    def excess_bound(self) -> float:
        """What the absolute value of `excess` stays below under the law."""
        chance = log(2 * _BOUNDS * len(_RATES) / FALSE_ALARM)
        return min((chance + (exp(rate) - 1 - rate) * self.variance) / rate for rate in _RATES)

    @property
    def holds(self) -> bool:
        fits = self.distance < self.bound and abs(self.excess) < self.excess_bound and not self.impossible
        return fits and self.drafts_hold

    @property
    def is_wide(self) -> bool:
        """Whether so few tokens were drawn that hardly any verifier would be refused."""
        return self.bound > _WIDE


def fit(rows: Many[Draws]) -> Fit:
    """The fit of all rows together, which hold at least one token."""
    ranks = [rank for row in rows for rank in row.ranks]
    excess, variance = sum(row.excess for row in rows), sum(row.variance for row in rows)
    drafted = [rank for row in rows for rank in row.drafted]
    impossible = sum(row.impossible for row in rows)
    return Fit(len(ranks), distance(ranks), excess, variance, impossible, len(drafted), distance(drafted) if drafted else 0.0)


def _bound(ranks: int) -> float:
    """What the distance of so many ranks from uniform stays below under the law."""
    return sqrt(log(2 * _BOUNDS / FALSE_ALARM) / (2 * ranks))


def distance(ranks: Many[float] | np.ndarray) -> float:
    """The Kolmogorov distance of ranks from the uniform distribution; there is at least one."""
    found, steps = np.sort(np.asarray(ranks)), np.arange(len(ranks) + 1) / len(ranks)
    return float(max((steps[1:] - found).max(), (found - steps[:-1]).max()))


def tokens_drawn(prompts: int, max_tokens: int) -> int:
    """How many tokens `draws` draws from so many prompts."""
    return min(TURNS * prompts * max_tokens, MOST)


def draws(llm: LLM, prompts: Many[Prompt], params: SamplingParams) -> Iterator[Draws]:
    """Decode the prompts in turn, every time with another seed, until `tokens_drawn` were drawn."""
    seed, left, noted = params.seed or 0, tokens_drawn(len(prompts), params.max_tokens), 0
    for run in count():
        if not left:
            return
        prompt = prompts[run % len(prompts)]
        change = {"seed": (seed + run) % 2**64, "max_tokens": min(params.max_tokens, left)}
        with noted_drafts(llm.engine.speculative, MOST - noted) as drafted:
            answer = llm.generate(prompt, params.model_copy(update=change))[0]
        left -= len(answer.token_ids)
        noted += len(drafted)
        yield replace(placed(llm, prompt, params, answer), drafted=tuple(drafted))


def sequence_of(llm: LLM, prompt: Prompt, params: SamplingParams, seed: int) -> Sequence:
    """A sequence as the engine would admit it, without an answer yet, to follow an answer apart from the engine."""
    sequence = Sequence(0, tuple(llm.encode(prompt)), params, seed, llm.engine.stop_ids(params))
    sequence.constraint = llm.engine.constraint(params)
    return sequence


def placed(llm: LLM, prompt: Prompt, params: SamplingParams, answer: Completion) -> Draws:
    """Where the tokens of an answer lie in the distributions that plain decoding has behind the same text."""
    sequence = sequence_of(llm, prompt, params, answer.seed)
    exact, ranks, excess, variance, impossible = llm.target.batch_invariant, list[float](), 0.0, 0.0, 0
    for token, logits in zip(answer.token_ids, _rows(llm.target, sequence, answer.token_ids), strict=True):
        context = Context(sequence)
        probs = probabilities(target_scores(logits, context), context.sequence)
        ranks.append(rank_of(token, probs, uniform(stream(sequence.seed, "check"), len(sequence.tokens))))
        likeliest = int(probs.argmax())
        chance = float(probs[likeliest])
        excess += (token == likeliest) - chance
        variance += chance * (1 - chance)
        if exact and probs[token] == 0.0 and _is_impossible(logits, context, token):
            impossible += 1
        sequence.commit((token,), ("",))
    return Draws(prompt, params.temperature, answer, tuple(ranks), excess, variance, impossible)


def _rows(target: LanguageModel, sequence: Sequence, answer: Many[int]) -> Iterator[torch.Tensor]:
    """float32 [V] for each token of an answer: the logits it was chosen by. Every row has its own forward, as in plain decoding,
    unless its bits are the same in any forward."""
    text, first = (*sequence.prompt, *answer[:-1]), len(sequence.prompt) - 1
    cache, size = target.new_cache(), _ROWS if target.batch_invariant else 1
    if first:
        target.logits_after([(sequence, text[:first])], cache)
    for start in range(first, len(text), size):
        piece = text[start : start + size]
        step = Step.of([Feed(sequence, start, piece, DraftTree.root(piece[-1]), prompt_logits=True)])
        cache.stage(step)
        root, *rows = target.score(step, cache).logits.cpu()
        cache.commit([Verdict()])
        yield from (*rows, root)


def _is_impossible(logits: torch.Tensor, context: Context, token: int) -> bool:
    """Whether a token of probability 0 has probability 0 however sums are rounded. logits: float32 [V]."""
    params = context.sequence.params
    wider = {"top_p": min(params.top_p * (1 + _ROUNDING), 1.0), "min_p": params.min_p * (1 - _ROUNDING)}
    return bool(probabilities(narrowed(shaped(logits, context), params.model_copy(update=wider)), context.sequence)[token] == 0.0)
