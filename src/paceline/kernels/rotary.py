"""Rotary positions, in Triton: a layer's first product becomes queries, keys and values, written to where they are read.

One program takes some heads of one row: it adds up the product's parts, normalises each head if the model does so, rotates it,
and writes queries to their tensor, keys and values into their pages.

Source: RoFormer, Su et al. (arXiv:2104.09864), with the halves of a head as pairs; norms of heads as in Qwen 3 and Gemma 3.
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from paceline.kernels.finite import finite
from paceline.kernels.overlap import begin, overlapped
from paceline.kernels.residual_norms import Norm

_TOGETHER = 8
"""Heads per program."""


@triton.jit(do_not_specialize=["count"])
def _turned(
    parts, bias, query_norm, key_norm, cosines, sines, growth, positions, destinations, queries, keys, values, count, epsilon,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, lines: tl.constexpr, rotary: tl.constexpr,
    part_count: tl.constexpr, biased: tl.constexpr, normed: tl.constexpr, grows: tl.constexpr, together: tl.constexpr,
    limit: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """One row and some of its heads, in the order query heads, key heads, value heads."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * together + tl.arange(0, together)
    line = tl.arange(0, lines)
    there = (head < heads + 2 * kv_heads)[:, None] & (line < size)[None, :]
    asks, tells = (head < heads)[:, None], (head >= heads + kv_heads)[:, None]
    half: tl.constexpr = rotary // 2
    # the partner in a number's rotated pair; itself if it is not rotated
    other = tl.where(line < half, line + half, tl.where(line < rotary, line - half, line))
    place = head[:, None] * size + line[None, :]
    partner = head[:, None] * size + other[None, :]
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    begin(early)
    numbers = tl.zeros([together, lines], tl.float32)
    partners = tl.zeros([together, lines], tl.float32)
    for part in tl.static_range(part_count):
        start = parts + (part * count + row) * width
        numbers += tl.load(start + place, mask=there, other=0.0)
        partners += tl.load(start + partner, mask=there, other=0.0)
    if biased:
        numbers += tl.load(bias + place, mask=there, other=0.0)
        partners += tl.load(bias + partner, mask=there, other=0.0)
    if normed:
        share = tl.where(tells, 1.0, tl.rsqrt(tl.sum(numbers * numbers, 1) / size + epsilon)[:, None])
        numbers = numbers * share * _weights(query_norm, key_norm, line, asks, tells, line < size)
        partners = partners * share * _weights(query_norm, key_norm, other, asks, tells, line < size)
    position = tl.maximum(tl.load(positions + row), 0).to(tl.int64)
    angle = position * half + tl.where(line < half, line, line - half)
    cosine = tl.load(cosines + angle, mask=line < rotary, other=1.0)
    sine = tl.load(sines + angle, mask=line < rotary, other=0.0)
    turned = numbers * cosine[None, :] + tl.where((line < half)[None, :], -partners, partners) * sine[None, :]
    slot = tl.load(destinations + row).to(tl.int64) * kv_heads * size
    asked = turned * tl.load(growth + position) if grows else turned
    tl.store(queries + row * heads * size + place, asked.to(queries.dtype.element_ty), mask=there & asks)
    in_slot = slot + place - heads * size
    tl.store(keys + in_slot, finite(turned, limit).to(keys.dtype.element_ty), mask=there & (asks == 0) & (tells == 0))
    # a row that sees a NaN token gets NaN from its key; other rows multiply its value by zero, so NaN in values becomes 0
    cleaned = tl.where(numbers == numbers, finite(numbers, limit), 0.0)
    tl.store(values + in_slot - kv_heads * size, cleaned.to(values.dtype.element_ty), mask=there & tells)


@triton.jit
def _weights(query_norm, key_norm, line, asks, tells, inside):
    """Norm weights of each head's numbers; 1 for values, which have no norm."""
    own = tl.where(asks, tl.load(query_norm + line, mask=inside, other=0.0)[None, :], 1.0)
    return tl.where(asks | tells, own, tl.load(key_norm + line, mask=inside, other=0.0)[None, :])


@dataclass(frozen=True)
class Heads:
    """queries, keys: number of heads of each. size: numbers per head, of which the first `rotary` are rotated."""

    queries: int
    keys: int
    size: int
    rotary: int


def turned(
    parts: torch.Tensor,
    heads: Heads,
    tables: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    destinations: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None = None,
    norms: tuple[Norm, Norm] | None = None,
    growth: torch.Tensor | None = None,
) -> torch.Tensor:
    """The queries of a step, [T, H, D] in the dtype of `keys`; its keys and values are written to the slots `destinations`,
    clamped to the largest number of their dtype, with NaN in values replaced by 0.

    parts: float32 [P, T, (H + 2 K) D], added up in order: queries, keys, values. tables: cosines and sines, float32 [positions,
    rotary / 2]. positions, destinations: int32 [T]; a negative position is padding and counts as 0. keys, values: [slots, K, D],
    contiguous. bias: float32 [(H + 2 K) D]. norms: RMSNorms of each query head and of each key head. growth: float32
    [positions], factors of queries.
    """
    part_count, count, _ = parts.shape
    queries = keys.new_empty(count, heads.queries, heads.size)
    query_norm, key_norm = norms or (None, None)
    _turned[(count, triton.cdiv(heads.queries + 2 * heads.keys, _TOGETHER))](
        parts, bias, query_norm.weight if query_norm else None, key_norm.weight if key_norm else None, *tables, growth,
        positions, destinations, queries, keys, values, count, query_norm.epsilon if query_norm else 0.0,
        heads=heads.queries, kv_heads=heads.keys, size=heads.size, lines=triton.next_power_of_2(heads.size), rotary=heads.rotary,
        part_count=part_count, biased=bias is not None, normed=norms is not None, grows=growth is not None, together=_TOGETHER,
        limit=torch.finfo(keys.dtype).max, enable_fp_fusion=False, **overlapped(parts.device),
    )  # fmt: skip
    return queries
