"""Finite: clamp overflowed numbers to the largest finite one, in Triton.

Infinity times zero is NaN, and so is infinity minus infinity: a drafted token that overflows would spoil rows before it in its
block.
"""

# pyright: reportMissingImports=false
# ... for Triton is optional

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finite(numbers, limit: tl.constexpr):
    """Clamp to [-limit, limit]; NaN stays NaN. limit: the largest number of a dtype."""
    return tl.where(numbers > limit, limit, tl.where(numbers < -limit, -limit, numbers))
