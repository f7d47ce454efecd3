"""Sampling: from the target's logits to its distribution, and from there to a token.

One order of transforms for plain decoding, every verified node and every draft: logit bias and bans, penalties, temperature,
top-k, top-p, min-p. Each is evaluated per node with that node's ancestors, so all of them are exact inside a draft.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as Many

import numpy as np
import torch

from paceline.errors import PacelineError
from paceline.frozen import frozen
from paceline.noise import noised_best
from paceline.params import SamplingParams
from paceline.sequence import Sequence


class LogitsError(PacelineError):
    """A model returned logits that are not numbers; the message is one sentence for the user.

    sequence: the one that they belong to, where that is known.
    """

    def __init__(self, sequence: Sequence | None = None) -> None:
        super().__init__("the model gave logits that are not numbers: try --weights fp32")
        self.sequence = sequence


@frozen
class Context:
    """What a row of logits was computed after: a sequence's committed tokens, then `ancestors`, node tokens below its root."""

    sequence: Sequence
    ancestors: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Index, in the whole sequence, of the token that this row chooses."""
        return len(self.sequence.tokens) + len(self.ancestors)


def shaped(logits: torch.Tensor, context: Context) -> torch.Tensor:
    """Bias, bans and penalties of one row; float32 [V] in and out. A draft's row may have fewer tokens than the target has.

    No bias makes a token possible that the grammar forbids. Where the grammar allows only the end, min_tokens does not ban that.
    """
    sequence, params = context.sequence, context.sequence.params
    if not sequence.shapes_logits:
        return logits
    logits = logits.clone()
    bias = {token: amount for token, amount in params.logit_bias.items() if token < len(logits)} if params.logit_bias else {}
    if bias:
        logits[list(bias)] += torch.tensor(list(bias.values()), device=logits.device)
    stops = [token for token in sequence.stop_ids if token < len(logits)]
    early = sequence.generated_tokens + len(context.ancestors) < params.min_tokens
    if sequence.constraint is not None:
        allowed = _within(sequence.constraint.allowed(context.ancestors), len(logits))
        if early and (further := allowed.index_fill(0, torch.tensor(stops, dtype=torch.int64), False)).any():
            allowed = further
        logits.masked_fill_(~allowed.to(logits.device), -torch.inf)
    elif early and stops:
        logits[stops] = -torch.inf
    if params.repetition_penalty != 1.0:
        seen = [token for token in sequence.prompt_set.union(sequence.generated_counts, context.ancestors) if token < len(logits)]
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty or params.frequency_penalty:
        counts = sequence.generated_counts
        if context.ancestors:
            counts = counts + Counter(context.ancestors)
        counts = {token: times for token, times in counts.items() if token < len(logits)}
        if counts:
            amounts = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
            logits[list(counts)] -= params.presence_penalty + params.frequency_penalty * amounts
    return logits


def _within(mask: np.ndarray, size: int) -> torch.Tensor:
    """bool [size]: the mask of the target's vocabulary for a row of a draft model, whose vocabulary may be padded differently."""
    if len(mask) == size:
        return torch.from_numpy(mask)
    return torch.from_numpy(np.pad(mask[:size], (0, max(size - len(mask), 0))))


def _top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Drop all but the smallest set of most probable tokens that holds `top_p`; tokens tied with the last one stay.

    Cutting at a value, not at an index, keeps the result independent of how a sort orders equal scores.
    """
    total = scores.double().logsumexp(-1)
    size = scores.shape[-1]
    # the set is usually small, and finding a few tokens takes a third of the time of a thousand
    take = min(128, size)
    while True:
        values = scores.topk(take).values
        mass = (values.double() - total).exp().cumsum(-1)
        last = int((mass < top_p).sum())
        if last < take or take == size:
            return scores.masked_fill(scores < values[min(last, take - 1)], -torch.inf)
        take = min(take * 8, size)


def narrowed(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Temperature, top-k, top-p and min-p of one shaped row, [V] in and out; under temperature 0 the row as it is."""
    if params.temperature == 0.0:
        return scores
    if params.temperature != 1.0:
        # by a tensor: a GPU multiplies by the reciprocal of a number, which is not the same to the last bit
        scores = scores / scores.new_full((), params.temperature)
    if 0 < params.top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(params.top_k).values[-1], -torch.inf)
    if params.top_p < 1.0:
        scores = _top_p(scores, params.top_p)
    if params.min_p > 0.0:
        scores = scores.masked_fill(scores < scores.max() + params.log_min_p, -torch.inf)
    return scores


def target_scores(logits: torch.Tensor, context: Context) -> torch.Tensor:
    """One row's scores after every transform: float32 [V], whose softmax is the target distribution of that row.

    Under temperature 0 the scores are only shaped: their argmax is the choice. -inf marks what cannot be chosen.
    """
    return narrowed(shaped(logits, context), context.sequence.params)


def probabilities(scores: torch.Tensor, sequence: Sequence) -> np.ndarray:
    """float64 [V]: the softmax of scores. Raises LogitsError, with the sequence, where they are not numbers."""
    # numpy: a few thousand numbers are not worth waking torch's threads for
    row = scores.cpu().numpy().astype(np.float64)
    best = row.max()
    if not math.isfinite(best):
        raise LogitsError(sequence)
    weights = np.exp(row - best)
    return weights / weights.sum()


def largest(row: np.ndarray) -> int:
    """The index of the largest value, -1 where one is NaN. row: float32 [V]."""
    # numpy takes NaN for the largest; torch takes over ten times as long
    place = int(row.argmax())
    return place if row[place] == row[place] else -1


def largest_of_each(rows: torch.Tensor) -> list[int]:
    """`largest` of every row. rows: float32 [R, V], on any device."""
    if rows.is_cpu:
        return [largest(row) for row in rows.numpy()]
    values, places = rows.max(-1)
    return places.masked_fill_(values.isnan(), -1).tolist()


def checked(token: int, sequence: Sequence) -> int:
    """The token that `largest` found. Raises LogitsError where it found none."""
    if token < 0:
        raise LogitsError(sequence)
    return token


def choose(logits: torch.Tensor, contexts: Many[Context]) -> list[int]:
    """One token per row, the one plain decoding picks there. logits: float32 [R, V], one context per row.

    Raises LogitsError, with the sequence, where a row holds NaN.
    """
    if all(context.sequence.plain_greedy for context in contexts):
        sequences = [context.sequence for context in contexts]
        return [checked(token, sequence) for token, sequence in zip(largest_of_each(logits), sequences, strict=True)]
    chosen = []
    for row, context in zip(logits, contexts, strict=True):
        params = context.sequence.params
        scores = target_scores(row, context)
        if params.temperature == 0.0:
            chosen.append(checked(largest_of_each(scores[None])[0], context.sequence))
        else:
            drawn = noised_best(scores, context.sequence.seed, context.position)
            if not drawn:
                raise LogitsError(context.sequence)
            chosen += drawn
    return chosen
