"""Residual norms, in Triton: a block's output is added to the residual stream, and the next block's input is normalised.

One program takes one row, so a row's bits do not depend on the rows beside it. It adds up the partial sums of a row product.

Source: RMSNorm, Zhang and Sennrich (arXiv:1910.07467); norms after a block as in Gemma 2 (arXiv:2408.00118, section 2).
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from paceline.kernels.overlap import begin, overlapped


@dataclass(frozen=True)
class Norm:
    """weight: float32 [D]. bias: float32 [D] of a LayerNorm, None for an RMSNorm."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    epsilon: float


@triton.jit
def _normalised(numbers, weight, bias, epsilon, line, there, width: tl.constexpr, centred: tl.constexpr):
    if centred:
        numbers = tl.where(there, numbers - tl.sum(numbers, 0) / width, 0.0)
    share = tl.rsqrt(tl.sum(numbers * numbers, 0) / width + epsilon)
    result = numbers * share * tl.load(weight + line, mask=there, other=0.0)
    if centred:
        result += tl.load(bias + line, mask=there, other=0.0)
    return result


@triton.jit(do_not_specialize=["count"])
def _joined(
    residual, parts, part_bias, behind_weight, behind_bias, weight, bias, out, count, epsilon,
    width: tl.constexpr, lines: tl.constexpr, part_count: tl.constexpr, biased: tl.constexpr, behind: tl.constexpr,
    normed: tl.constexpr, centred: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """One row: residual += [norm `behind`](sum of parts + bias); out = [norm](residual)."""
    row = tl.program_id(0).to(tl.int64)
    line = tl.arange(0, lines)
    there = line < width
    begin(early)
    numbers = tl.load(residual + row * width + line, mask=there, other=0.0)
    if part_count > 0:
        branch = tl.zeros([lines], tl.float32)
        for part in tl.static_range(part_count):
            branch += tl.load(parts + (part * count + row) * width + line, mask=there, other=0.0)
        if biased:
            branch += tl.load(part_bias + line, mask=there, other=0.0)
        if behind:
            branch = _normalised(branch, behind_weight, behind_bias, epsilon, line, there, width, centred)
        numbers += branch
        tl.store(residual + row * width + line, numbers, mask=there)
    if normed:
        numbers = _normalised(numbers, weight, bias, epsilon, line, there, width, centred)
    tl.store(out + row * width + line, numbers.to(out.dtype.element_ty), mask=there)


def joined(
    residual: torch.Tensor,
    norm: Norm | None,
    dtype: torch.dtype,
    parts: torch.Tensor | None = None,
    part_bias: torch.Tensor | None = None,
    behind: Norm | None = None,
) -> torch.Tensor:
    """Add a block's output to the residual stream in place; return it, normalised unless `norm` is None, [T, D] in `dtype`.

    residual: float32 [T, D], contiguous. parts: the block's output, float32 [P, T, D], added up in order; None before the first
    block. part_bias: float32 [D]. behind: a norm of the block's output; all norms of a model have the same epsilon.
    """
    count, width = residual.shape
    out = torch.empty(count, width, dtype=dtype, device=residual.device)
    lines = triton.next_power_of_2(width)
    behind_weight, behind_bias = (behind.weight, behind.bias) if behind else (None, None)
    weight, bias = (norm.weight, norm.bias) if norm else (None, None)
    either = norm or behind
    # no fusion of multiplications with additions, so that the number of parts does not change how the rest rounds
    _joined[(count,)](
        residual, parts, part_bias, behind_weight, behind_bias, weight, bias, out, count, either.epsilon if either else 0.0,
        width=width, lines=lines, part_count=0 if parts is None else parts.shape[0], biased=part_bias is not None,
        behind=behind is not None, normed=norm is not None, centred=either is not None and either.bias is not None,
        num_warps=min(max(lines // 512, 1), 16), enable_fp_fusion=False, **overlapped(residual.device),
    )  # fmt: skip
    return out
