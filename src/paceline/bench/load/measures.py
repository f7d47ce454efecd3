"""Measures: numbers from the outcomes of requests. All times are seconds.

TTFT: from when a request was due (in a closed loop: was sent) to its first chunk with text. ITL: between tokens; of several
tokens in one chunk the first has the whole gap, the others 0; the time between chunks is reported too. TPOT: from the first to
the last chunk with text, over all tokens but the first; one number per request. End-to-end: to the end of the stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence as Many
from typing import Any

import numpy as np

from paceline.bench.load.objective import Objective
from paceline.bench.load.outcome import Outcome

TIMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "inter_chunk_s": "between chunks", "e2e_s": "end-to-end"}
POINTS = 200
"""Points of a distribution in a record: quantiles at even steps from 0 to 1."""


def measured(outcomes: Many[Outcome], wall_s: float, objective: Objective | None) -> dict[str, Any]:
    """The record's numbers for requests that were measured together over `wall_s`."""
    answered = [outcome for outcome in outcomes if outcome.answered]
    errors = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    tokens = sum(outcome.counted_tokens for outcome in answered)
    times = _times(answered)
    return {
        "sent": len(outcomes),
        "answered": len(answered),
        "refused": sum(outcome.refused for outcome in outcomes),
        "refusals": sum(outcome.refusals for outcome in outcomes),
        "errors": dict(errors.most_common()),
        "messages": {str(o.error): o.message for o in reversed(outcomes) if o.error is not None and o.message},
        "wall_s": wall_s,
        "prompt_tokens": sum(outcome.prompt_tokens or 0 for outcome in answered),
        "tokens": tokens,
        "chunks": sum(outcome.chunks for outcome in answered),
        "requests_per_s": len(answered) / wall_s,
        "tokens_per_s": tokens / wall_s,
        **{name: _summary(values) for name, values in times.items()},
        "lag_s": _summary([outcome.lag_s for outcome in outcomes]),
        "goodput": _goodput(outcomes, wall_s, objective),
        **_speculation(answered),
        "distributions": {name: _quantiles(values) for name, values in times.items()},
    }


def _times(answered: Iterable[Outcome]) -> dict[str, list[float]]:
    answered = list(answered)
    return {
        "ttft_s": [o.first_s for o in answered if o.first_s is not None],
        "tpot_s": [o.tpot_s for o in answered if o.tpot_s is not None],
        "itl_s": [gap for o in answered for gap in o.itl_s],
        "inter_chunk_s": [gap for o in answered for gap in o.gaps_s],
        "e2e_s": [o.ended_s for o in answered],
    }


def _summary(values: Many[float]) -> dict[str, float] | None:
    if not values:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {"mean": float(np.mean(values)), "p50": p50, "p90": p90, "p99": p99, "max": max(values), "count": len(values)}


def _quantiles(values: Many[float]) -> list[float]:
    if not values:
        return []
    # observed times only, no interpolation
    return np.quantile(values, np.linspace(0, 1, POINTS + 1), method="inverted_cdf").round(7).tolist()


def _goodput(outcomes: Many[Outcome], wall_s: float, objective: Objective | None) -> dict[str, Any] | None:
    """share: of all requests sent, including refused and failed ones."""
    if objective is None:
        return None
    met = sum(objective.met(outcome) for outcome in outcomes)
    return {"objective": str(objective), "met": met, "share": met / len(outcomes), "requests_per_s": met / wall_s}


def _speculation(answered: Iterable[Outcome]) -> dict[str, Any]:
    """tau over all steps: mean of the answers' taus, weighted by their steps, or by 1 if the server does not report steps."""
    pairs = [pair for outcome in answered if (pair := _tau(outcome.speculation)) is not None]
    weight = sum(steps for _, steps in pairs)
    return {"tau": sum(tau * steps for tau, steps in pairs) / weight if weight else None, "tau_answers": len(pairs)}


def _tau(said: Mapping[str, Any]) -> tuple[float, float] | None:
    tau, steps = said.get("tau", said.get("mean_acceptance_length")), said.get("num_spec_steps", 1)
    if not isinstance(tau, int | float) or not isinstance(steps, int | float) or not (0 < tau < 1e9 and 0 <= steps < 1e12):
        return None
    return float(tau), float(steps)
