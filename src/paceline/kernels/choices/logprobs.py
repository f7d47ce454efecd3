"""Log-probabilities of tokens from several rows of logits, in one compiled call that takes a few nanoseconds per logit."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from paceline.kernels.compiled import available
from paceline.kernels.compiled_call import CompiledFunction
from paceline.logprobs import TokenLogprobs, token_logprobs as numpy_token_logprobs

_MOST = 64
"""Largest number of likeliest tokens that compiled code finds; numpy finds more."""
_TOGETHER = 16
"""Rows per call. Rows that are not contiguous are copied, and those of a long prompt may take a hundred megabytes."""
TOKEN_LOGPROBS = CompiledFunction(
    "choices.logprobs_kernel.token_logprobs",
    logits="float32[:,:]",
    tokens="int64[:]",
    totals="float64[:]",
    ranks="int64[:]",
    places="int64[:,:]",
    keys="int32[:]",
)


def token_logprobs(rows: np.ndarray, tokens: Many[int], count: int) -> list[TokenLogprobs]:
    """Per row, the log-probability and rank of its token and the `count` likeliest tokens, as `paceline.logprobs.token_logprobs`.

    rows: float32 [n, V], logits. tokens: n token ids.
    """
    found: list[TokenLogprobs] = []
    for begin in range(0, len(rows), _TOGETHER):
        some = slice(begin, begin + _TOGETHER)
        found += _batch_logprobs(np.ascontiguousarray(rows[some]), tokens[some], count)
    return found


def _batch_logprobs(rows: np.ndarray, tokens: Many[int], count: int) -> list[TokenLogprobs]:
    """As `token_logprobs`, in one call. rows: float32 [n, V], contiguous."""
    size = min(count, rows.shape[1])
    totals, ranks, places = np.empty(len(rows)), np.zeros(len(rows), np.int64), np.empty((len(rows), size), np.int64)
    if size <= _MOST and available(TOKEN_LOGPROBS):
        TOKEN_LOGPROBS(rows, np.array(tokens, np.int64), totals, ranks, places, np.empty(size, np.int32))
    found = []
    for row, token, total, rank, likeliest in zip(rows, tokens, totals.tolist(), ranks.tolist(), places.tolist(), strict=True):
        if not rank:
            found.append(numpy_token_logprobs(row, token, count))
            continue
        top = tuple([(one, float(row[one]) - total) for one in likeliest])
        found.append(TokenLogprobs(token, float(row[token]) - total, rank, top))
    return found
