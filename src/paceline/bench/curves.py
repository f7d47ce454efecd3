"""Curves: what a forward of the target costs by rows, behind a cached context, measured straight on the model.

A row more is cheap where the weights are read once for all rows: that is what lets a draft pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from statistics import median
from time import perf_counter

import torch

from paceline.models.base import LanguageModel
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree

ROWS = (1, 2, 4, 8, 16, 32, 64)
VERIFY_CONTEXT, PREFILL = 256, 512
"""Tokens cached before a verify, and the length of a prompt to prefill, both cut to what the model can hold."""
FORWARDS = 9
"""Measured forwards per number of rows, whose median counts."""
_KEY = 0


def some_tokens(count: int, vocab_size: int) -> tuple[int, ...]:
    """Token ids that mean nothing, the same ones at every call."""
    drawn = torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(count))
    return tuple(drawn.tolist())


class ModelForward:
    """Forwards of `rows` rows, a chain, behind `context` cached tokens."""

    def __init__(self, model: LanguageModel, context: int) -> None:
        self._model, self._cache, self._context = model, model.new_cache(), context
        self._tokens = some_tokens(context + max(ROWS), model.vocab_size)
        self._sequence = Sequence(_KEY, self._tokens, SamplingParams(), 0)
        if context:
            model.logits_after([(self._sequence, self._tokens[:context])], self._cache)

    def __call__(self, rows: int) -> float:
        """Seconds of one forward, its logits for every row; the cache is as before."""
        root, *drafted = self._tokens[self._context : self._context + rows]
        step = Step.of([Feed(self._sequence, self._context, (root,), DraftTree.chain(root, drafted, "bench"))])
        began = perf_counter()
        self._cache.stage(step)
        self._model.score(step, self._cache)
        seconds = perf_counter() - began
        self._cache.commit([Verdict()])
        self._cache.truncate(_KEY, self._context)
        return seconds


def verify_curve(
    forwards: dict[str, Callable[[int], float]], rows: Many[int], repeats: int, advance: Callable[[], None] = lambda: None
) -> dict[str, dict[int, float]]:
    """Median milliseconds by rows of each forward, measured in turns after one warm-up each; name -> rows -> ms."""
    seen: dict[str, dict[int, list[float]]] = {name: {n: [] for n in rows} for name in forwards}
    for turn in range(repeats + 1):
        for n in rows:
            for name, forward in forwards.items():
                seconds = forward(n)
                if turn:
                    seen[name][n].append(seconds * 1e3)
                advance()
    return {name: {n: median(times) for n, times in by_rows.items()} for name, by_rows in seen.items()}
