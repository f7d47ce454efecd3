"""Tellings: log-probabilities of tokens, read off several rows of logits in one call; a few nanoseconds a logit."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from paceline.kernels.compiled import available
from paceline.kernels.lookups import Lookup
from paceline.logprobs import TokenLogprobs, told as told_by_numpy

_MOST = 64
"""As many of the likeliest as are kept in order while a row is walked."""
_TOGETHER = 16
"""Rows that are copied at once where they do not lie one behind the other: all of a long prompt may take a hundred megabytes."""
TOLD = Lookup(
    "choices.telling.told",
    logits="float32[:,:]",
    bits="int32[:,:]",
    tokens="int64[:]",
    totals="float64[:]",
    ranks="int64[:]",
    places="int64[:,:]",
    keys="int32[:]",
)


def told(rows: np.ndarray, tokens: Many[int], count: int) -> list[TokenLogprobs]:
    """What each row says of its token and of the `count` likeliest ones, as `logprobs.told` has it. rows: float32 [n, V]."""
    found: list[TokenLogprobs] = []
    for begin in range(0, len(rows), _TOGETHER):
        some = slice(begin, begin + _TOGETHER)
        found += _told(np.ascontiguousarray(rows[some]), tokens[some], count)
    return found


def _told(rows: np.ndarray, tokens: Many[int], count: int) -> list[TokenLogprobs]:
    size = min(count, rows.shape[1])
    totals, ranks, places = np.empty(len(rows)), np.zeros(len(rows), np.int64), np.empty((len(rows), size), np.int64)
    if size <= _MOST and available(TOLD):
        TOLD(rows, rows.view(np.int32), np.array(tokens, np.int64), totals, ranks, places, np.empty(size, np.int32))
    found = []
    for row, token, total, rank, likeliest in zip(rows, tokens, totals.tolist(), ranks.tolist(), places.tolist(), strict=True):
        if not rank:
            found.append(told_by_numpy(row, token, count))
            continue
        top = tuple([(one, float(row[one]) - total) for one in likeliest])
        found.append(TokenLogprobs(token, float(row[token]) - total, rank, top))
    return found
