"""The formulas of Leviathan et al. (arXiv:2211.17192), sections 3.1 and 3.3, where every token is accepted alike."""

from __future__ import annotations


def expected_tokens(acceptance: float, length: int) -> float:
    """Tokens a step emits. length: of the draft."""
    return length + 1.0 if acceptance == 1.0 else (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance)


def improvement(acceptance: float, length: int, cost: float) -> float:
    """How much sooner a text is there. cost: of one drafted token, in forwards of the target."""
    return expected_tokens(acceptance, length) / (length * cost + 1.0)


def operations(acceptance: float, length: int, cost: float) -> float:
    """How much more is computed. cost: as above, in operations."""
    return (length * cost + length + 1.0) / expected_tokens(acceptance, length)


def optimal_length(acceptance: float, cost: float, longest: int = 64) -> int:
    return max(range(longest + 1), key=lambda length: improvement(acceptance, length, cost))
