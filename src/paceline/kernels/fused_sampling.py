"""Fused sampling: from logits to tokens on the device, exactly the tokens that `sampling.choose` picks.

A launch divides by the temperature, drops scores below the row's cut, adds the position-keyed noise and keeps the best; the hash
is the 32-bit one of `noise`, bit for bit, its Gumbel noise likewise computed in float64 and rounded to float32. A cut is a value:
the k-th largest score, the score where the mass reaches top-p, the largest score plus log min-p, whichever is highest.

Where the device might choose another token, it declines the row (-1) and the caller uses `sampling.choose`: if there is no finite
score or a NaN, if two best tokens tie, or if a mass is so close to top-p that the order of a sum decides. Penalties, biases and
bans change single logits depending on the host's counts; rows with these are not supported (`fits`).

Source: Gumbel-max sampling; the noise is that of `paceline.noise`, which names its sources.
"""
# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from paceline import noise, sampling
from paceline.params import SamplingParams
from paceline.sampling import Context

_SORTED = 1024
"""Scores sorted per row to find a cut; a row whose top-p needs more of them is declined."""
_DOUBT = 1e-9
"""Masses are sums of up to V float64 terms in any order: further than this from top-p, every order agrees."""
_BLOCK = 1024
"""Logits per program, so that a large vocabulary gives enough programs to fill a device."""
_NO_TOKEN = tl.constexpr(2**31 - 1)


def fits(params: SamplingParams, vocab_size: int) -> bool:
    """Whether rows with these sampling parameters may be given to `choose_on_device`."""
    return not params.shapes_logits and (params.temperature == 0.0 or not _SORTED < params.top_k < vocab_size)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


@dataclass(frozen=True)
class SamplingRows:
    """Sampling inputs of W rows, in one copy to the device. They do not depend on the logits: a node's position is root + depth.

    numbers: float64 [W, 6]: the two signed 32-bit words of the noise's key, temperature, top-k (0: off), top-p and log min-p.
    cuts: whether any row has a cut.
    """

    numbers: torch.Tensor
    cuts: bool

    @classmethod
    def of(cls, contexts: Many[Context], vocab_size: int, device: torch.device) -> SamplingRows:
        """Raises ValueError for a context that does not fit. Does not wait for the device."""
        rows, cuts = [], False
        for context in contexts:
            params = context.sequence.params
            if not fits(params, vocab_size):
                raise ValueError("rows with penalties, biases, bans or a very large top-k are not sampled on the device")
            bits = noise.key(context.sequence.seed, context.position)
            greedy = params.temperature == 0.0
            top_k = 0 if greedy or params.top_k >= vocab_size else params.top_k
            top_p = 1.0 if greedy else params.top_p
            log_min_p = -math.inf if greedy else params.log_min_p
            cuts = cuts or params.cuts
            words = _signed(bits & 0xFFFFFFFF), _signed(bits >> 32)
            rows.append((*words, params.temperature, top_k, top_p, log_min_p))
        host = torch.tensor(rows, dtype=torch.float64, pin_memory=device.type == "cuda")
        return cls(host.to(device, non_blocking=True), cuts)


@triton.jit
def _mix32(word):
    # unsigned, so that shifts fill with zeros; products wrap
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def _gumbel(tokens, low, high):
    word = _mix32(_mix32(tokens.to(tl.uint32) ^ low) + high)
    # two sums, since 2**31 + 0.5 is not representable in float32, and a literal might become float32
    uniform = ((word.to(tl.int32, bitcast=True).to(tl.float64) + 2147483648.0) + 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _noised(scores, tokens, low, high, temperature):
    """Scores in float64, plus the position's noise if the temperature is above 0."""
    noised = scores.to(tl.float64)
    if temperature > 0.0:
        noised += _gumbel(tokens, low, high).to(tl.float64)
    return noised


@triton.jit(do_not_specialize=["logits_row"])
def _best_of_block(
    logits, numbers, cuts, values, tokens, counts, vocab_size, logits_row, block: tl.constexpr, cutting: tl.constexpr,
):  # fmt: skip
    """One row and block of the vocabulary: its largest score + noise (float64), the lowest token that has it, and how many
    tokens have it; a count of -1 means that a logit was NaN."""
    row = tl.program_id(0)
    low = tl.load(numbers + row * 6).to(tl.int32).to(tl.uint32, bitcast=True)
    high = tl.load(numbers + row * 6 + 1).to(tl.int32).to(tl.uint32, bitcast=True)
    temperature = tl.load(numbers + row * 6 + 2).to(tl.float32)
    token = tl.program_id(1) * block + tl.arange(0, block)
    inside = token < vocab_size
    logit = tl.load(logits + row.to(tl.int64) * logits_row + token, mask=inside, other=float("-inf")).to(tl.float32)
    score = tl.div_rn(logit, tl.where(temperature > 0.0, temperature, 1.0))
    if cutting:
        score = tl.where(score < tl.load(cuts + row), float("-inf"), score)
    noised = _noised(score, token, low, high, temperature)
    best = tl.max(noised, 0)
    sick = tl.max((logit != logit).to(tl.int32), 0)
    cell = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + cell, best)
    tl.store(tokens + cell, tl.min(tl.where(noised == best, token, _NO_TOKEN), 0))
    tl.store(counts + cell, tl.where(sick > 0, -1, tl.sum((noised == best).to(tl.int32), 0)))


@triton.jit(do_not_specialize=["blocks"])
def _best_of_row(values, tokens, counts, numbers, doubts, chosen, blocks, lines: tl.constexpr, cutting: tl.constexpr):
    """The token of one row, or -1 if it is not certain."""
    row = tl.program_id(0)
    line = tl.arange(0, lines)
    there = line < blocks
    value = tl.load(values + row * blocks + line, mask=there, other=float("-inf"))
    count = tl.load(counts + row * blocks + line, mask=there, other=0)
    best = tl.max(value, 0)
    leads = there & (value == best)
    token = tl.min(tl.where(leads, tl.load(tokens + row * blocks + line, mask=there, other=_NO_TOKEN), _NO_TOKEN), 0)
    certain = (best > float("-inf")) & (tl.min(count, 0) >= 0)
    # greedy choice takes the lowest of tied tokens; with noise, rounding might decide a tie
    certain &= (tl.load(numbers + row * 6 + 2) == 0.0) | (tl.sum(tl.where(leads, count, 0), 0) == 1)
    if cutting:
        certain &= tl.load(doubts + row) == 0
    tl.store(chosen + row, tl.where(certain, token, -1))


def _cuts(logits: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [W], the score below which each row's scores are dropped, and bool [W], rows whose cut might change with the order
    of summing.

    The steps are those of `sampling.target_scores`, for all rows at once: top-k, then top-p of the rest, then min-p.
    """
    temperature, top_k, top_p, log_min_p = numbers[:, 2:].unbind(1)
    scores = logits / torch.where(temperature > 0, temperature, 1.0).float()[:, None]
    sorted_scores = scores.topk(min(_SORTED, scores.shape[1])).values
    # the clamped index is used only if k is off: an enabled k is at most the number of sorted scores
    kth = sorted_scores.gather(1, (top_k.long() - 1).clamp(0, sorted_scores.shape[1] - 1)[:, None])
    cut = torch.where(top_k[:, None] > 0, kth, -torch.inf)
    total = scores.masked_fill(scores < cut, -torch.inf).double().logsumexp(1, keepdim=True)
    sorted_scores = sorted_scores.masked_fill(sorted_scores < cut, -torch.inf)
    mass = (sorted_scores.double() - total).exp().cumsum(1)
    needed = (mass < top_p[:, None]).sum(1, keepdim=True)
    at_needed = sorted_scores.gather(1, needed.clamp(max=sorted_scores.shape[1] - 1))
    nucleus = top_p < 1
    short = (needed[:, 0] == sorted_scores.shape[1]) & (sorted_scores.shape[1] < scores.shape[1])
    doubtful = nucleus & (short | ((mass - top_p[:, None]).abs() < _DOUBT).any(1))
    cut = torch.where(nucleus[:, None], torch.maximum(cut, at_needed), cut)
    return torch.maximum(cut, sorted_scores[:, :1] + log_min_p.float()[:, None])[:, 0], doubtful


def choose_on_device(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """int32 [W] on the device: per row the token that `sampling.choose` picks, or -1 if the caller has to call it.

    logits: float32 [W, V], a row's logits contiguous. Never waits for the device.
    """
    count, vocab_size = logits.shape
    cuts, doubtful = _cuts(logits, rows.numbers) if rows.cuts else (None, None)
    blocks = triton.cdiv(vocab_size, _BLOCK)
    values = logits.new_empty(count, blocks, dtype=torch.float64)
    # two allocations, not halves of one: Triton compiles a separate kernel for pointers that are not multiples of 16
    tokens, counts = (torch.empty(count, blocks, dtype=torch.int32, device=logits.device) for _ in range(2))
    _best_of_block[(count, blocks)](
        logits, rows.numbers, cuts, values, tokens, counts, vocab_size, logits.stride(0), block=_BLOCK, cutting=rows.cuts,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    chosen = torch.empty(count, dtype=torch.int32, device=logits.device)
    _best_of_row[(count,)](
        values, tokens, counts, rows.numbers, doubtful, chosen, blocks, lines=triton.next_power_of_2(blocks), cutting=rows.cuts,
    )  # fmt: skip
    return chosen


class Choices:
    """The token of each row, as `sampling.choose` picks it: all that the device can choose at once, with one wait; the others one
    by one, on demand.

    logits: float32 [R, V], a row's logits contiguous; one context per row.
    """

    def __init__(self, logits: torch.Tensor, contexts: Many[Context]) -> None:
        self._logits, self._contexts = logits, contexts
        asked = [row for row, context in enumerate(contexts) if fits(context.sequence.params, logits.shape[1])]
        self._chosen = [-1] * len(contexts)
        # a cut takes ten times as long as the choice, so rows without cuts are chosen separately
        cut = [row for row in asked if contexts[row].sequence.params.cuts]
        groups = [cut, [row for row in asked if row not in set(cut)]]
        parts = []
        for group in groups:
            if group:
                rows = SamplingRows.of([contexts[row] for row in group], logits.shape[1], logits.device)
                parts.append(choose_on_device(logits if len(group) == len(contexts) else logits[group], rows))
        if parts:
            for row, token in zip([row for group in groups for row in group], torch.cat(parts).tolist(), strict=True):
                self._chosen[row] = token

    def __call__(self, row: int) -> int:
        """The token of a row. Raises LogitsError as `sampling.choose` does."""
        if self._chosen[row] < 0:
            self._chosen[row] = sampling.choose(self._logits[row : row + 1], [self._contexts[row]])[0]
        return self._chosen[row]
