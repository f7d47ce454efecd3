"""Comparison: two bodies measured in one run, each ratio with both of its terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Many
from typing import Any

import numpy as np

from paceline.bench.load.drive import Block

FEWEST_PAIRS = 5
"""Fewest pairs of blocks for an interval of their ratio."""
_RESAMPLES = 2000


def compared(body: Mapping[str, Any], against: Mapping[str, Any], pairs: Many[tuple[Block, Block]]) -> dict[str, Any]:
    """body, against: results of `measured`. pairs: their blocks, which took turns.

    Ratios are `body` over `against`. interval: 95 % of the ratio of tokens per second, by bootstrap over the pairs.
    """
    answer: dict[str, Any] = {}
    for name in ("tokens_per_s", "requests_per_s"):
        answer[name] = _ratio(body[name], against[name])
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        if body[name] and against[name]:
            answer[name] = _ratio(body[name]["mean"], against[name]["mean"])
    rows = np.array([[_tokens(one), one.wall_s, _tokens(other), other.wall_s] for one, other in pairs])
    texts = [
        first.text == second.text
        for one, other in pairs
        for first, second in zip(one.outcomes, other.outcomes, strict=True)
        if first.answered and second.answered
    ]
    return {
        "means": answer,
        "interval": _interval(rows) if len(pairs) >= FEWEST_PAIRS else None,
        "pairs": [
            {"body_tokens_per_s": one / one_s, "against_tokens_per_s": other / other_s} for one, one_s, other, other_s in rows
        ],
        "equal_texts": {"equal": sum(texts), "of": len(texts)},
    }


def _tokens(block: Block) -> int:
    return sum(outcome.counted_tokens for outcome in block.outcomes if outcome.answered)


def _ratio(body: float, against: float) -> dict[str, float | None]:
    return {"body": body, "against": against, "ratio": body / against if against else None}


def _interval(rows: np.ndarray) -> list[float] | None:
    drawn = np.random.default_rng(0).integers(len(rows), size=(_RESAMPLES, len(rows)))
    one, one_s, other, other_s = np.moveaxis(rows[drawn].sum(axis=1), 1, 0)
    if not (one.all() and other.all()):
        return None
    return np.quantile(one / one_s * other_s / other, (0.025, 0.975)).tolist()
