"""Costs: what a step took on this machine, by rows, batch and context; filled by the engine, read by policies and planning."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Timings:
    """Seconds of one step by part."""

    draft_s: float
    forward_s: float
    verify_s: float
    commit_s: float


@dataclass
class Cost:
    """Running totals of the forwards of one shape."""

    count: int = 0
    total_s: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.total_s / self.count


def _bucket(size: int) -> int:
    """The power of two at or above `size`: neighbouring shapes cost alike and share their measurements."""
    return 1 << max(size - 1, 0).bit_length()


@dataclass
class Costs:
    """Measured forward times. Shapes are bucketed to powers of two, but for rows up to 16, where each one counts."""

    forwards: dict[tuple[int, int, int], Cost] = field(default_factory=dict)
    """(rows, sequences, longest context) -> cost."""

    def observe(self, rows: int, batch: int, context_tokens: int, timings: Timings) -> None:
        shape = (rows if rows <= 16 else _bucket(rows), _bucket(batch), _bucket(context_tokens))
        cost = self.forwards.setdefault(shape, Cost())
        cost.count += 1
        cost.total_s += timings.forward_s

    def table(self) -> list[dict[str, float]]:
        """One row per shape seen, for reports."""
        return [
            {"rows": r, "batch": b, "context_tokens": c, "count": cost.count, "mean_s": cost.mean_s}
            for (r, b, c), cost in sorted(self.forwards.items())
        ]
