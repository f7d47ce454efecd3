"""Sampling: from the target's logits to its distribution, and from there to a token.

One order of transforms for plain decoding, every verified node and every draft: logit bias and bans, penalties, temperature,
top-k, top-p, min-p. Each is evaluated per node with that node's ancestors, so all of them are exact inside a draft.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from paceline.noise import noised_best

if TYPE_CHECKING:
    from paceline.sequence import Sequence

Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def _divisible(temperature: float) -> float:
    # logits divided by less would leave float32: several tokens would be infinitely likely
    if 0.0 < temperature < 1e-6:
        raise ValueError("must be 0 (greedy) or at least 1e-6")
    return temperature


class SamplingParams(BaseModel):
    """How one request is sampled. Immutable; out-of-range, infinite or unknown fields raise pydantic.ValidationError.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0, repetition_penalty 1 and the other penalties 0 switch themselves off.
    Repetition counts prompt and generated tokens, presence and frequency the generated ones. min_tokens bans whatever would
    stop the text (EOS and stop_token_ids) before that many tokens. Without a seed one is drawn at admission and reported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: Annotated[int, Field(ge=1, le=2**24)] = 256
    temperature: Annotated[Finite, Field(ge=0.0, le=100.0), AfterValidator(_divisible)] = 0.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    top_p: Annotated[Finite, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[Finite, Field(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[Finite, Field(gt=0.0, le=100.0)] = 1.0
    presence_penalty: Annotated[Finite, Field(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[Finite, Field(ge=-2.0, le=2.0)] = 0.0
    logit_bias: Annotated[dict[TokenId, Annotated[Finite, Field(ge=-100.0, le=100.0)]], Field(max_length=4096)] = {}
    min_tokens: Annotated[int, Field(ge=0, le=2**24)] = 0
    stop: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(max_length=64)] = ()
    stop_token_ids: Annotated[frozenset[TokenId], Field(max_length=1024)] = frozenset()
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    ignore_eos: bool = False

    @property
    def shapes_logits(self) -> bool:
        """True where anything but the temperature changes the logits of a row."""
        return bool(
            self.logit_bias
            or self.min_tokens
            or self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
        )

    @property
    def plain_greedy(self) -> bool:
        return self.temperature == 0.0 and not self.shapes_logits


@dataclass(frozen=True)
class Context:
    """What a row of logits was computed after: a sequence's committed tokens, then `ancestors`, node tokens below its root."""

    sequence: Sequence
    ancestors: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Index, in the whole sequence, of the token that this row chooses."""
        return len(self.sequence.tokens) + len(self.ancestors)


def _shaped(logits: torch.Tensor, context: Context) -> torch.Tensor:
    """Bias, bans and penalties of one row; float32 [V] in and out."""
    sequence, params = context.sequence, context.sequence.params
    logits = logits.clone()
    if params.logit_bias:
        logits[list(params.logit_bias)] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
    if len(sequence.tokens) - len(sequence.prompt) + len(context.ancestors) < params.min_tokens and sequence.stop_ids:
        logits[list(sequence.stop_ids)] = -torch.inf
    if params.repetition_penalty != 1.0:
        seen = list(sequence.prompt_set.union(sequence.generated_counts, context.ancestors))
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty or params.frequency_penalty:
        counts = sequence.generated_counts
        if context.ancestors:
            counts = counts + Counter(context.ancestors)
        if counts:
            amounts = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
            logits[list(counts)] -= params.presence_penalty + params.frequency_penalty * amounts
    return logits


def _top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Drop all but the smallest set of most probable tokens that holds `top_p`; tokens tied with the last one stay.

    Cutting at a value, not at an index, keeps the result independent of how a sort orders equal scores.
    """
    total = scores.double().logsumexp(-1)
    size = scores.shape[-1]
    take = min(1024, size)
    while True:
        values = scores.topk(take).values
        mass = (values.double() - total).exp().cumsum(-1)
        last = int((mass < top_p).sum())
        if last < take or take == size:
            return scores.masked_fill(scores < values[min(last, take - 1)], -torch.inf)
        take = min(take * 8, size)


def target_scores(logits: torch.Tensor, context: Context) -> torch.Tensor:
    """One row's scores after every transform: float32 [V], whose softmax is the target distribution of that row.

    Under temperature 0 the scores are only shaped: their argmax is the choice. -inf marks what cannot be chosen.
    """
    params = context.sequence.params
    scores = _shaped(logits, context) if params.shapes_logits else logits
    if params.temperature == 0.0:
        return scores
    scores = scores / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(params.top_k).values[-1], -torch.inf)
    if params.top_p < 1.0:
        scores = _top_p(scores, params.top_p)
    if params.min_p > 0.0:
        scores = scores.masked_fill(scores < scores.max() + math.log(params.min_p), -torch.inf)
    return scores


def best(logits: torch.Tensor, context: Context, count: int) -> list[int]:
    """The `count` most preferred tokens of one row under that position's noise, best first; the first is the choice.

    logits: float32 [V].
    """
    scores = target_scores(logits, context)
    if context.sequence.params.temperature == 0.0:
        return scores.topk(min(count, scores.shape[-1])).indices.tolist()
    return noised_best(scores, context.sequence.seed, context.position, count)


def choose(logits: torch.Tensor, contexts: Many[Context]) -> list[int]:
    """One token per row, the one plain decoding picks there. logits: float32 [R, V], one context per row."""
    if all(context.sequence.params.plain_greedy for context in contexts):
        return logits.argmax(-1).tolist()
    chosen = []
    for row, context in zip(logits, contexts, strict=True):
        params = context.sequence.params
        scores = target_scores(row, context)
        if params.temperature == 0.0:
            chosen.append(int(scores.argmax()))
        else:
            chosen.append(noised_best(scores, context.sequence.seed, context.position)[0])
    return chosen
