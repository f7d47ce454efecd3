"""The formulas of Leviathan et al. (arXiv:2211.17192), sections 3.1 and 3.3, for equal acceptance rates of all tokens."""

from __future__ import annotations


def expected_tokens(acceptance: float, length: int) -> float:
    """Expected tokens per step. length: of the draft."""
    return length + 1.0 if acceptance == 1.0 else (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance)


def improvement(acceptance: float, length: int, cost: float) -> float:
    """Speedup in time. cost: of one drafted token, in forwards of the target."""
    return expected_tokens(acceptance, length) / (length * cost + 1.0)


def operations(acceptance: float, length: int, cost: float) -> float:
    """Factor of additional computation. cost: as above, in operations."""
    return (length * cost + length + 1.0) / expected_tokens(acceptance, length)


def optimal_length(acceptance: float, cost: float, longest: int = 64) -> int:
    return max(range(longest + 1), key=lambda length: improvement(acceptance, length, cost))
