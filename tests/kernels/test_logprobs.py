"""Log-probabilities of tokens: compiled code equals numpy."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.kernels.choices import logprobs
from paceline.kernels.choices.logprobs import token_logprobs
from paceline.logprobs import token_logprobs as numpy_token_logprobs


def rows_of(count: int, size: int, spread: float, seed: int = 0) -> np.ndarray:
    # wider than the vocabulary, like the output of a kernel
    return (np.random.default_rng(seed).normal(0.0, spread, (count, size + 7)).astype(np.float32))[:, :size]


@pytest.mark.parametrize("size", [1, 50, 4096, 32003])
@pytest.mark.parametrize("spread", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_compiled_log_probabilities_equal_those_of_numpy(size: int, spread: float, count: int) -> None:
    rows = rows_of(21, size, spread)
    rows[3, : size // 2] = -np.inf
    # of equal logits numpy lists any, compiled code the first
    rows[4] = np.round(rows[4]) + 0.0
    tokens = np.random.default_rng(1).integers(0, size, 21).tolist()
    for at, (row, token, found) in enumerate(zip(rows, tokens, token_logprobs(rows, tokens, count), strict=True)):
        wanted = numpy_token_logprobs(row, token, count)
        assert (found.token, found.rank) == (token, wanted.rank)
        expected = np.argsort(-row, kind="stable")[:count].tolist() if at == 4 else [one for one, _ in wanted.top]
        assert [one for one, _ in found.top] == expected
        assert found.logprob == pytest.approx(wanted.logprob, abs=1e-6)
        assert [value for _, value in found.top] == pytest.approx([value for _, value in wanted.top], abs=1e-6)


def test_a_row_tells_the_same_whatever_stands_beside_it() -> None:
    rows = rows_of(40, 500, 3.0)
    assert token_logprobs(rows, [7] * 40, 5) == [one for row in rows for one in token_logprobs(row[None], [7], 5)]


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_no_number_is_left_to_numpy(odd: float) -> None:
    rows = rows_of(2, 30, 1.0)
    rows[0, 4] = odd
    with np.errstate(invalid="ignore"):
        found, expected = token_logprobs(rows, [3, 3], 2), numpy_token_logprobs(rows[0], 3, 2)
    assert repr(found[0]) == repr(expected)
    assert np.isfinite(found[1].logprob)


def test_without_compiled_code_numpy_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "available", lambda *kernels: False)
    rows = rows_of(3, 30, 1.0)
    assert token_logprobs(rows, [1, 2, 3], 4) == [
        numpy_token_logprobs(row, token, 4) for row, token in zip(rows, [1, 2, 3], strict=True)
    ]
