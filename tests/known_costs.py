"""An adaptive policy with known costs of forwards and drafts, and the drafters it decides on."""

from __future__ import annotations

from paceline.budget import Budget, DrafterInfo
from paceline.policies import adaptive

MODEL = DrafterInfo("model", Budget(6, 6), costly=True)
LOOKUP = DrafterInfo("ngram", Budget(6, 6))


def adaptive_with(points: dict[int, float], draft_s: float = 0.0) -> adaptive.AdaptivePolicy:
    """points: rows -> seconds of a forward. draft_s: seconds per level drafted by the costly drafter."""
    policy = adaptive.build(adaptive.Options())
    for rows, seconds in points.items():
        policy.costs.curve.put(rows, seconds)
    for depth in range(1, 7):
        policy.costs.measured("model", depth, 1, depth * draft_s)
        policy.costs.measured("ngram", depth, 1, 1e-6)
    return policy
