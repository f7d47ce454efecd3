"""Log-probabilities of single tokens, as the target gave them: raw log-softmax, before any processor of the request."""

from __future__ import annotations

from dataclasses import dataclass


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
