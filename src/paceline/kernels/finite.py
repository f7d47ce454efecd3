"""Finite: what overflows, in Triton, is the largest number there is.

An infinity weighed with nothing is no number, and so is one minus another: a drafted token that overflows would spoil rows before
it in its block.
"""

# pyright: reportMissingImports=false
# ... for Triton is optional

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finite(numbers, limit: tl.constexpr):
    """limit: the largest of a dtype. What is no number stays none."""
    return tl.where(numbers > limit, limit, tl.where(numbers < -limit, -limit, numbers))
