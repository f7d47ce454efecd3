"""Speculation fields of a response: counts over all choices, and each step if a stream requests a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Many
from itertools import zip_longest
from typing import Any

from paceline.serve.asking import Delta, Ending, Service

_SUMS = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")


def metrics(endings: Many[Ending]) -> dict[str, Any]:
    """`metrics` of a response: the counts by the names that vLLM's clients read, and the seed of the first choice."""
    return {"speculative_decoding": _merged([ending.speculation for ending in endings]), "seed": endings[0].seed}


def _merged(counts: Many[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over the choices, and means weighted by their steps; all other fields are the same for all choices.

    A choice that timed out before it began has no counts.
    """
    counts = [one for one in counts if one]
    first = dict(counts[0]) if counts else {}
    if len(counts) < 2:
        return first
    steps = [one["num_spec_steps"] for one in counts]
    total = max(sum(steps), 1)
    sums = {name: sum(one[name] for one in counts) for name in _SUMS}
    shares = zip_longest(*(one["acceptance_by_depth"] for one in counts), fillvalue=0.0)
    drafted = [list(of_depth) for of_depth in zip_longest(*(one["drafted_by_depth"] for one in counts), fillvalue=0)]
    return first | {
        **sums,
        "mean_acceptance_length": 1 + sums["num_accepted_draft_tokens"] / total,
        "draft_acceptance_rate": sums["num_accepted_draft_tokens"] / max(sums["num_draft_tokens"], 1),
        "acceptance_histogram": [
            sum(bins) for bins in zip_longest(*(one["acceptance_histogram"] for one in counts), fillvalue=0)
        ],
        "tau": _mean([one["tau"] for one in counts], steps, total),
        "num_spec_tokens": max(one["num_spec_tokens"] for one in counts),
        # over the steps that drafted to this depth
        "acceptance_by_depth": [_mean(of_depth, of, max(sum(of), 1)) for of_depth, of in zip(shares, drafted, strict=True)],
        "drafted_by_depth": [sum(of) for of in drafted],
    }


def _mean(values: Many[float], weights: Many[int], total: int) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total


def traced(service: Service, delta: Delta) -> list[dict[str, Any]]:
    """The steps of a delta: tokens that each emitted and rejected, with counts and times; none without a trace.

    `source` is the drafter that proposed the token, "" for the target itself. `parent` is an index into `rejected`, or -1 - i if
    the parent is the i-th token that the step emitted (counted from 1; -1 for the step's root).
    """
    steps, low = [], 0
    for step in delta.steps:
        high = low + step.emitted
        emitted = zip(delta.tokens[low:high], delta.sources[low:high], strict=True)
        rejected = zip(step.rejected.tokens, step.rejected.sources, step.rejected.parents, strict=True)
        steps.append(
            {
                "emitted": [{"id": token, "token": shown(service, token), "source": source} for token, source in emitted],
                "rejected": [
                    {"id": token, "token": shown(service, token), "source": source, "parent": parent}
                    for token, source, parent in rejected
                ],
                "drafted": step.drafted,
                "accepted": step.accepted,
                "draft_ms": 1e3 * step.draft_s,
                "forward_ms": 1e3 * step.forward_s,
                "verify_ms": 1e3 * step.verify_s,
                "rows": step.rows,
            }
        )
        low = high
    return steps


def shown(service: Service, token: int) -> str:
    """One token as text; U+FFFD for bytes that are not a complete character."""
    return service.piece(token).decode("utf-8", errors="replace")
