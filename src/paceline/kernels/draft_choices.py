"""Draft choices, in Triton: the next token of each chain of a draft and its confidence, written where the next forward pass reads
them.

A token has the largest logit / temperature, plus the position's noise if the temperature is above 0, as in `ranking`; its
confidence is its probability in the softmax of these.
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline.kernels.fused_sampling import _NO_TOKEN, _noised

_BLOCK = 1024


# slices of a table of all levels have any alignment
@triton.jit(do_not_specialize=["vocab_size"], do_not_specialize_on_alignment=["choices"])
def _best_and_mass(logits, choices, values, tokens, masses, vocab_size, width, block: tl.constexpr):
    """One sequence and block of the vocabulary: the largest noised score, the lowest token that has it, and the sum of
    exp(score - largest)."""
    sequence = tl.program_id(0)
    low = tl.load(choices + sequence * 3).to(tl.uint32, bitcast=True)
    high = tl.load(choices + sequence * 3 + 1).to(tl.uint32, bitcast=True)
    temperature = tl.load(choices + sequence * 3 + 2).to(tl.float32, bitcast=True)
    token = tl.program_id(1) * block + tl.arange(0, block)
    inside = token < vocab_size
    logit = tl.load(logits + sequence.to(tl.int64) * width + token, mask=inside, other=float("-inf"))
    score = tl.div_rn(logit, tl.where(temperature > 0.0, temperature, 1.0))
    noised = _noised(score, token, low, high, temperature)
    best = tl.max(noised, 0)
    beyond = tl.where(inside, (noised - best).to(tl.float32), float("-inf"))
    cell = sequence * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + cell, best)
    tl.store(tokens + cell, tl.min(tl.where(noised == best, token, _NO_TOKEN), 0))
    tl.store(masses + cell, tl.sum(tl.exp2(beyond * 1.4426950408889634), 0))


@triton.jit(do_not_specialize=["blocks", "vocab_size"], do_not_specialize_on_alignment=["found", "shares", "following"])
def _chosen(values, tokens, masses, found, shares, following, blocks, vocab_size, lines: tl.constexpr, follows: tl.constexpr):
    """The token of one sequence and its probability. following: where the next level reads the token."""
    sequence = tl.program_id(0)
    line = tl.arange(0, lines)
    there = line < blocks
    value = tl.load(values + sequence * blocks + line, mask=there, other=float("-inf"))
    best = tl.max(value, 0)
    mass = tl.load(masses + sequence * blocks + line, mask=there, other=0.0)
    beyond = tl.where(there, (value - best).to(tl.float32), float("-inf"))
    total = tl.sum(mass * tl.exp2(beyond * 1.4426950408889634), 0)
    token = tl.load(tokens + sequence * blocks + line, mask=there, other=_NO_TOKEN)
    # a row of NaN has no best token, but the embedding lookup needs a valid one
    token = tl.minimum(tl.min(tl.where(value == best, token, _NO_TOKEN), 0), vocab_size - 1)
    tl.store(found + sequence, token)
    tl.store(shares + sequence, 1.0 / total)
    if follows:
        tl.store(following + sequence, token)


def choose_drafts(
    logits: torch.Tensor,
    choices: torch.Tensor,
    vocab_size: int,
    found: torch.Tensor,
    shares: torch.Tensor,
    following: torch.Tensor | None,
) -> None:
    """Write the token of every sequence and its probability. Does not wait for the device.

    logits: float32 [S, V], contiguous. choices: int32 [S, 3], noise keys and temperatures (`chain_tables.Level`). vocab_size:
    tokens that may be drafted. found: int32 [S]. shares: float32 [S], probabilities, NaN if the row contains NaN. following:
    int32 [S], where the next level reads its tokens.
    """
    count, blocks = len(found), triton.cdiv(vocab_size, _BLOCK)
    values = torch.empty(count, blocks, dtype=torch.float64, device=logits.device)
    masses = torch.empty(count, blocks, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(count, blocks, dtype=torch.int32, device=logits.device)
    _best_and_mass[(count, blocks)](
        logits, choices, values, tokens, masses, vocab_size, logits.shape[1], block=_BLOCK, enable_fp_fusion=False
    )
    _chosen[(count,)](
        values, tokens, masses, found, shares, following, blocks, vocab_size, lines=triton.next_power_of_2(blocks),
        follows=following is not None,
    )  # fmt: skip
