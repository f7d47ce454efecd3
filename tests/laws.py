"""Statistics of the whole step loop: draws for many seeds, and tests of their law with a stated false-alarm rate.

To make tens of thousands of seeds affordable, two pure functions are computed in bulk: the noise of a position for many seeds
at once (by the engine's own key and hash), and the scores of a context once instead of once per seed. `test_match_law` shows
that the loop draws the same tokens without this.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence as Many
from contextlib import contextmanager

import pytest
import torch

from fakes import FakeTokenizer, TableModel
from paceline import noise, sampling
from paceline.budget import Budget
from paceline.drafters.base import Drafter
from paceline.drafting import Work
from paceline.engine.stops import StopChecker
from paceline.params import SamplingParams
from paceline.policies.base import Policy
from paceline.policies.fixed import FixedPolicy
from paceline.sampling import Context
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.verifiers.base import Verifier
from paceline.verifiers.match import Match

Outcome = tuple[int, ...]

FALSE_ALARM = 1e-6
"""Per test of one law; the seeds are fixed, so the result never changes."""
LENGTH = 3
BLOCK = 1024
PROMPT = (0, 1, 2)


class _Bulk:
    """Replaces `noised_best` and `target_scores` where the vocabulary is small and contexts repeat."""

    def __init__(self) -> None:
        self._scores = sampling.target_scores
        self._rows: dict[tuple[int, int], list[list[float]]] = {}
        self._known: dict[tuple[object, ...], torch.Tensor] = {}

    def target_scores(self, logits: torch.Tensor, context: Context) -> torch.Tensor:
        sequence = context.sequence
        key = (logits.numpy().tobytes(), id(sequence.params), tuple(sequence.tokens), context.ancestors)
        if key not in self._known:
            self._known[key] = self._scores(logits, context)
        return self._known[key]

    def noised_best(self, scores: torch.Tensor, seed: int, position: int, count: int = 1) -> list[int]:
        block = (seed // BLOCK, position)
        if block not in self._rows:
            self._rows[block] = self._drawn(*block, len(scores))
        noised = [s + g for s, g in zip(scores.tolist(), self._rows[block][seed % BLOCK], strict=True)]
        order = sorted(range(len(noised)), key=noised.__getitem__, reverse=True)
        return [token for token in order[:count] if noised[token] > -math.inf]

    def _drawn(self, block: int, position: int, size: int) -> list[list[float]]:
        keys = [noise.key(seed, position) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
        low = torch.tensor([noise._signed(key & 0xFFFFFFFF) for key in keys], dtype=torch.int32)[:, None]
        high = torch.tensor([noise._signed(key >> 32) for key in keys], dtype=torch.int32)[:, None]
        tokens = torch.arange(size, dtype=torch.int32)
        words = noise._mix32(noise._mix32(tokens ^ low) + high)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noise, "hashed", lambda *_: words)
            return noise.gumbel(0, 0, tokens).tolist()


@contextmanager
def bulk() -> Iterator[None]:
    stand_in = _Bulk()
    # the garbage collector would take half the time, searching torch's modules for cycles
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "target_scores", stand_in.target_scores)
            patch.setattr(sampling, "noised_best", stand_in.noised_best)
            yield
    finally:
        gc.enable()


def drawn(
    model: TableModel,
    drafter: Drafter,
    params: SamplingParams,
    seeds: Many[int],
    length: int = LENGTH,
    verifier: Verifier | None = None,
    policy: Policy | None = None,
) -> list[Outcome]:
    """`length` tokens per seed by the whole step loop, in batches of a thousand; verified by `match` with no draft trimmed,
    unless another rule or policy is given."""
    params = params.model_copy(update={"max_tokens": length})
    speculative = Speculative(model, drafter, verifier or Match(), policy or FixedPolicy())
    stops = StopChecker(FakeTokenizer.of_letters(model.vocab_size), 10_000)  # pyright: ignore[reportArgumentType]
    outcomes: list[Outcome] = []
    for first in range(0, len(seeds), BLOCK):
        live = [Sequence(seed, PROMPT, params, seed) for seed in seeds[first : first + BLOCK]]
        batch = list(live)
        for sequence in live:
            stops.begin(sequence)
        while live:
            speculative.step([_work(speculative, sequence, length) for sequence in live], stops)
            live = [sequence for sequence in live if sequence.finish_reason is None]
        outcomes += [tuple(sequence.generated) for sequence in batch]
        for sequence in batch:
            speculative.release(sequence.key)
    return outcomes


def _work(speculative: Speculative, sequence: Sequence, length: int) -> Work:
    held = speculative.cache.length(sequence.key)
    left = length - len(sequence.generated) - 1
    return Work(sequence, held, len(sequence.tokens) - held, Budget(speculative.drafter.budget.nodes, left))


def chi_square(outcomes: Many[Outcome], law: Mapping[Outcome, float]) -> float:
    """p-value of the chi-square test against the law; cells with an expected count below 5 are merged."""
    counts, size = Counter(outcomes), len(outcomes)
    if any(outcome not in law for outcome in counts):
        return 0.0
    large = [outcome for outcome, chance in law.items() if chance * size >= 5]
    cells = [(counts[outcome], law[outcome] * size) for outcome in large]
    rest = size - sum(expected for _, expected in cells)
    if rest >= 5:
        cells.append((size - sum(count for count, _ in cells), rest))
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2).double(), torch.tensor(statistic / 2).double()))


def surprise(outcomes: Many[Outcome], law: Mapping[Outcome, float]) -> float:
    """p-value of the mean log-probability (normal, two-sided): the sharpest test of a wrong temperature."""
    if any(outcome not in law for outcome in outcomes):
        return 0.0
    logs = {outcome: math.log(chance) for outcome, chance in law.items()}
    mean = sum(chance * logs[outcome] for outcome, chance in law.items())
    variance = sum(chance * (logs[outcome] - mean) ** 2 for outcome, chance in law.items())
    observed = sum(logs[outcome] for outcome in outcomes) / len(outcomes)
    if variance == 0:
        return 1.0
    return math.erfc(abs(observed - mean) / math.sqrt(variance / len(outcomes)) / math.sqrt(2))


def obeys(outcomes: Many[Outcome], law: Mapping[Outcome, float]) -> bool:
    """Both tests at half the false-alarm rate each."""
    return min(chi_square(outcomes, law), surprise(outcomes, law)) > FALSE_ALARM / 2
