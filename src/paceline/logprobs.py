"""Log-probabilities of single tokens, as the target gave them: raw log-softmax, before any processor of the request."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenLogprobs:
    """One token of a text and what else was likely there.

    logprob: natural logarithm. rank: 1 for the likeliest token of the vocabulary. top: (token id, logprob) of the likeliest
    tokens, the best first, as many as the request asked for.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(row: np.ndarray, token: int, count: int) -> TokenLogprobs:
    """The log-probability and rank of one token, and the `count` likeliest tokens, from one row of logits. row: float32 [V]."""
    best = float(row.max())
    total = best + math.log(float(np.exp(row - best, dtype=np.float64).sum()))
    value = row[token]
    size = min(count, len(row))
    # of equal ones the first, which a partition alone does not guarantee
    among = np.flatnonzero(row >= np.partition(row, -size)[-size]) if size else np.empty(0, np.int64)
    ordered = among[np.argsort(-row[among], kind="stable")][:size].tolist()
    rank = int((row > value).sum()) + 1
    return TokenLogprobs(token, float(value) - total, rank, tuple((one, float(row[one]) - total) for one in ordered))
