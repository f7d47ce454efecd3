"""An oracle that shares no code with the engine: noise in Python integers, transforms in float64, decoding token by token.

The text of a request is a pure function of its prompt, parameters and seed, so the engine must produce the same text in every
configuration.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence as Many
from dataclasses import dataclass

import numpy as np

from paceline.params import SamplingParams

Row = Callable[[Many[int]], "np.ndarray"]
"""Tokens -> float64 [V], the logits after them."""


def mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def mix32(x: int) -> int:
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16


def hash32(seed: int, position: int, token: int) -> int:
    """Unsigned 32 bits."""
    key = mix64((mix64(seed) + position) % 2**64)
    return mix32((mix32(token ^ key % 2**32) + key // 2**32) % 2**32)


def gumbel(seed: int, position: int, token: int) -> float:
    # the engine hashes to signed words, so that the unsigned order starts at 2**31
    ordered = hash32(seed, position, token) ^ 2**31
    return -math.log(-math.log((ordered + 0.5) / 2**32))


def scores(
    logits: Many[float], prompt: Many[int], generated: Many[int], params: SamplingParams, stop_ids: Iterable[int] = ()
) -> np.ndarray:
    """float64 [V]: the transforms, one after another, in the documented order."""
    row = [float(x) for x in logits]
    for token, bias in params.logit_bias.items():
        row[token] += bias
    if len(generated) < params.min_tokens:
        for token in stop_ids:
            row[token] = -math.inf
    counts = Counter(generated)
    for token in {*prompt, *generated}:
        row[token] = row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
    for token, count in counts.items():
        row[token] -= params.presence_penalty + params.frequency_penalty * count
    if params.temperature == 0:
        return np.array(row)
    row = [x / params.temperature for x in row]
    if params.top_k:
        edge = sorted(row, reverse=True)[: params.top_k][-1]
        row = [x if x >= edge else -math.inf for x in row]
    if params.top_p < 1:
        mass, edge = 0.0, -math.inf
        for x, probability in sorted(zip(row, softmax(row), strict=True), reverse=True):
            mass, edge = mass + probability, x
            if mass >= params.top_p:
                break
        row = [x if x >= edge else -math.inf for x in row]
    if params.min_p > 0:
        top = max(row)
        row = [x if math.exp(x - top) >= params.min_p * (1 - 1e-12) else -math.inf for x in row]
    return np.array(row)


def softmax(row: Many[float]) -> np.ndarray:
    weights = np.exp(np.array(row, dtype=np.float64) - max(row))
    return weights / weights.sum()


def pick(row: np.ndarray, temperature: float, seed: int, position: int) -> int:
    """The token of one position: the first of the highest scores, noised unless greedy."""
    if temperature > 0:
        row = row + [gumbel(seed, position, token) for token in range(len(row))]
    return int(np.argmax(row))


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    text: str
    finish: str


def plain(
    row: Row,
    decode: Callable[[Many[int]], str],
    prompt: Many[int],
    params: SamplingParams,
    seed: int,
    *,
    eos: Iterable[int] = (),
    longest: int,
) -> Answer:
    """Plain decoding: one token after another, all stop rules checked from scratch after each."""
    stop_ids = params.stop_token_ids if params.ignore_eos else params.stop_token_ids | frozenset(eos)
    tokens: list[int] = []
    while True:
        shaped = scores(row([*prompt, *tokens]), prompt, tokens, params, stop_ids)
        tokens.append(pick(shaped, params.temperature, seed, len(prompt) + len(tokens)))
        if tokens[-1] in stop_ids:
            return Answer(tokens, decode(tokens[:-1]), "stop")
        text, least = decode(tokens), len(decode(tokens[: params.min_tokens]))
        found = [at for stop in params.stop if (at := text.find(stop, least)) >= 0]
        if found:
            return Answer(tokens, text[: min(found)], "stop")
        if len(tokens) == params.max_tokens or len(prompt) + len(tokens) == longest:
            return Answer(tokens, text, "length")


def law(row: Row, prompt: Many[int], params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    """The exact probability of every `length`-token continuation with nonzero probability."""
    size = len(row(prompt))
    probabilities: dict[tuple[int, ...], float] = {}
    conditionals: dict[tuple[int, ...], np.ndarray] = {}
    for outcome in itertools.product(range(size), repeat=length):
        chance = 1.0
        for at, token in enumerate(outcome):
            before = outcome[:at]
            if before not in conditionals:
                conditionals[before] = softmax(scores(row([*prompt, *before]), prompt, before, params))
            chance *= conditionals[before][token]
        if chance > 0:
            probabilities[outcome] = chance
    return probabilities
