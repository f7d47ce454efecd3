"""Curves: cost of a forward pass of the target by rows, after a cached context, measured directly on the model.

An additional row is cheap as long as the weights are read once for all rows: this is why drafts pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from statistics import median

from paceline.bench.contest import DecoderFailed

ROWS = (1, 2, 4, 8, 16, 32, 64)
VERIFY_CONTEXT, PREFILL = 256, 512
"""Tokens cached before a verify, and the length of a prompt to prefill, both limited by the model's context."""
FORWARDS = 9
"""Measured forward passes per number of rows, of which the median is taken."""


def verify_curve(
    forwards: dict[str, Callable[[int], float]],
    rows: Many[int],
    repeats: int,
    failures: dict[str, str],
    advance: Callable[[], None] = lambda: None,
) -> dict[str, dict[int, float]]:
    """Median milliseconds of each forward pass by rows, measured in turns after one warm-up each; name -> rows -> ms.

    Each is timed directly after another one of the same model, as when decoding. One that fails is left out from then on, and
    `failures` gets the reason by name.
    """
    seen: dict[str, dict[int, list[float]]] = {name: {n: [] for n in rows} for name in forwards}
    for turn in range(repeats + 1):
        for n in rows:
            for name, forward in forwards.items():
                advance()
                if name in failures:
                    continue
                try:
                    forward(n)
                    seconds = forward(n)
                except DecoderFailed as error:
                    failures[name] = str(error)
                    continue
                if turn:
                    seen[name][n].append(seconds * 1e3)
    return {name: {n: median(times) for n, times in by_rows.items()} for name, by_rows in seen.items() if name not in failures}
