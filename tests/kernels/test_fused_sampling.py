"""Fused sampling picks the same token as `sampling.choose`, or reports that it cannot decide."""

from __future__ import annotations

import os
from collections.abc import Sequence as Many
from typing import Any

import pytest
import torch

from paceline import noise, sampling
from paceline.params import SamplingParams
from paceline.sampling import Context, LogitsError
from paceline.sequence import Sequence

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

import triton
import triton.language as tl

from paceline.kernels import fused_sampling
from paceline.kernels.fused_sampling import Choices, SamplingRows, choose_on_device, fits

# `conftest` selects the interpreter unless TRITON_INTERPRET is set, for runs on a GPU
DEVICE = torch.device("cuda" if os.environ["TRITON_INTERPRET"] == "0" else "cpu")
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 3.7},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-p": {"temperature": 0.9, "top_p": 0.6},
    "min-p": {"temperature": 1.3, "min_p": 0.05},
    "all": {"temperature": 1.1, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "top-k beyond the vocabulary": {"temperature": 1.0, "top_k": 10**6},
}


def contexts(count: int, **law: Any) -> list[Context]:
    """Rows of sequences with many seeds, at many positions and depths."""
    params = SamplingParams(**law)
    seeds = [(row * 0x9E3779B97F4A7C15) % 2**64 for row in range(count)]
    return [Context(Sequence(row, (1,) * (1 + row % 7), params, seed), (2,) * (row % 3)) for row, seed in enumerate(seeds)]


def random_logits(rows: int, vocab_size: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def asked(logits: torch.Tensor, rows: list[Context]) -> list[int]:
    """The device's answers, -1 where it refuses."""
    logits = logits.to(DEVICE)
    return choose_on_device(logits, SamplingRows.of(rows, logits.shape[1], DEVICE)).tolist()


@triton.jit
def noise_of(numbers, out, block: tl.constexpr):
    token = tl.arange(0, block)
    low = tl.load(numbers).to(tl.int32).to(tl.uint32, bitcast=True)
    high = tl.load(numbers + 1).to(tl.int32).to(tl.uint32, bitcast=True)
    tl.store(out + token, fused_sampling._gumbel(token, low, high))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 17), (2**64 - 1, 5), (0x123456789ABCDEF, 100000)])
def test_the_noise_has_the_very_bits(seed: int, position: int) -> None:
    context = Context(Sequence(0, (1,) * position if position < 100 else (1,), SamplingParams(), seed))
    if context.position != position:
        context = Context(context.sequence, (1,) * (position - 1))
    out = torch.zeros(4096, device=DEVICE)
    noise_of[(1,)](SamplingRows.of([context], 4096, DEVICE).numbers, out, 4096)
    assert torch.equal(out.cpu(), noise.gumbel(seed, position, torch.arange(4096)))


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a fixed time per block, so blocks are large here."""
    monkeypatch.setattr(fused_sampling, "_BLOCK", 4096)


@pytest.mark.parametrize("name", LAWS)
def test_the_kernel_chooses_the_token_that_sampling_choose_chooses(name: str) -> None:
    for rows, vocab_size, spread in ((16, 3000, 3.0), (6, 7, 1.0)):
        seeds, logits = contexts(rows, **LAWS[name]), random_logits(rows, vocab_size, spread)
        assert asked(logits, seeds) == sampling.choose(logits, seeds)


def test_laws_may_differ_from_row_to_row() -> None:
    rows = [context for row, law in enumerate(LAWS.values()) for context in contexts(row % 4 + 1, **law)]
    logits = random_logits(len(rows), 500)
    assert asked(logits, rows) == sampling.choose(logits, rows)


@pytest.mark.parametrize("spread", [0.5, 6.0])
def test_a_large_vocabulary_spans_several_chunks(spread: float) -> None:
    for law in ("greedy", "plain", "top-k"):
        rows, logits = contexts(3, **LAWS[law]), random_logits(3, 20000, spread)
        assert asked(logits, rows) == sampling.choose(logits, rows)


@pytest.mark.parametrize("law", ["plain", "top-p"])
def test_a_kernel_is_given_pointers_that_no_other_is_compiled_for(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are aligned to 16 bytes, whatever the number of rows."""
    given = list[torch.Tensor]()

    class Seen:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *of, **how: (given.extend(x for x in of if isinstance(x, torch.Tensor)), self.kernel[grid](*of, **how))

    for name in ("_best_of_block", "_best_of_row"):
        monkeypatch.setattr(fused_sampling, name, Seen(getattr(fused_sampling, name)))
    asked(random_logits(3, 300), contexts(3, **LAWS[law]))
    assert len(given) > 9
    assert not any(one.data_ptr() % 16 for one in given)


def test_banned_tokens_are_never_chosen() -> None:
    logits = random_logits(12, 300)
    logits[:, ::2] = -torch.inf
    for law in ("greedy", "plain", "all"):
        rows = contexts(12, **LAWS[law])
        assert asked(logits, rows) == sampling.choose(logits, rows)


def test_greedy_ties_go_to_the_first_token() -> None:
    logits = torch.zeros(2, 20000)
    logits[0, [9000, 15, 19999]] = 1.0
    logits[1, [8500, 8193]] = 1.0
    assert asked(logits, contexts(2)) == [15, 8193]


def test_rows_that_the_kernel_cannot_decide_are_refused() -> None:
    sampled, nucleus = LAWS["plain"], LAWS["top-p"]
    nothing = torch.full((1, 50), -torch.inf)
    not_numbers = random_logits(1, 50)
    not_numbers[0, 3] = torch.nan
    endless = random_logits(1, 50)
    endless[0, [4, 7]] = torch.inf
    for logits in (nothing, not_numbers, endless):
        assert asked(logits, contexts(1, **sampled)) == [-1]
    assert asked(not_numbers, contexts(1)) == [-1]
    assert asked(torch.zeros(1, 5), contexts(1, **nucleus)) == [-1], "three fifths of the mass are 0.6 up to rounding"
    assert asked(torch.zeros(1, 5000), contexts(1, **nucleus)) == [-1], "the nucleus is larger than the part that was sorted"


def choose(logits: torch.Tensor, contexts: Many[Context]) -> list[int]:
    """The tokens of all rows."""
    choices = Choices(logits, contexts)
    return [choices(row) for row in range(len(contexts))]


def test_refused_rows_are_decided_on_the_host() -> None:
    rows = [*contexts(2, **LAWS["top-p"]), *contexts(2, repetition_penalty=1.5), *contexts(2, **LAWS["plain"])]
    logits = random_logits(6, 50)
    logits[0] = 0.0
    assert choose(logits.to(DEVICE), rows) == sampling.choose(logits, rows)
    assert choose(logits[2:4].to(DEVICE), rows[2:4]) == sampling.choose(logits[2:4], rows[2:4])
    with pytest.raises(LogitsError):
        choose(torch.full((1, 9), torch.nan, device=DEVICE), contexts(1, **LAWS["plain"]))


@pytest.mark.parametrize("law", [{"logit_bias": {3: 1.0}}, {"min_tokens": 2}, {"temperature": 1.0, "top_k": 2000}])
def test_bias_min_tokens_and_large_top_k_are_not_sampled_on_the_device(law: dict[str, Any]) -> None:
    assert not fits(SamplingParams(**law), 5000)
    with pytest.raises(ValueError, match="not sampled on the device"):
        SamplingRows.of(contexts(1, **law), 5000, DEVICE)
