"""This engine as a decoder: one `Engine` per drafter over one target, timed step by step."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from time import perf_counter

from paceline.bench.contest import Decoded
from paceline.costs import Costs
from paceline.engine.engine import Engine
from paceline.params import SamplingParams

_PARTS = ("draft", "forward", "verify", "commit")
PLAIN = "plain"
"""The name of decoding without drafts, this engine's and every peer's."""


class EngineDecoder:
    """name: what its drafter was asked for by. temperature: 0 for greedy; every run has the same seed. held_bytes: the most its
    cache of the target held between steps."""

    def __init__(self, name: str, engine: Engine, temperature: float = 0.0) -> None:
        self.name, self._engine, self._temperature = name, engine, temperature
        self.held_bytes = 0
        self._at_first = Costs()

    def begin(self) -> None:
        self._engine.speculative.drafter.forget()

    def decode(self, prompt: Many[int], max_tokens: int) -> Decoded:
        (decoded,) = self.decode_batch([prompt], max_tokens)
        costs, before = self._engine.speculative.costs, self._at_first
        spent = {part: getattr(costs.spent, f"{part}_s") - getattr(before.spent, f"{part}_s") for part in _PARTS}
        # scheduling, stops and text
        spent["other"] = decoded.total_s - decoded.first_s - sum(spent.values())
        return replace(decoded, steps=costs.steps - before.steps, spent_s=spent)

    def decode_batch(self, prompts: Many[Many[int]], max_tokens: int) -> list[Decoded]:
        """Decode all at once; every time counts from the common start. Raises RequestError."""
        params = SamplingParams(max_tokens=max_tokens, temperature=self._temperature, seed=0)
        speculative = self._engine.speculative
        firsts: dict[int, tuple[float, int]] = {}
        ends: dict[int, float] = {}
        began = perf_counter()
        sequences = [self._engine.add(prompt, params) for prompt in prompts]
        while progress := self._engine.step():
            now = perf_counter() - began
            for sequence in (one.sequence for one in progress):
                if sequence.generated_tokens and sequence.key not in firsts:
                    firsts[sequence.key] = (now, sequence.generated_tokens)
                    self._at_first = replace(speculative.costs)
                if sequence.finish_reason is not None:
                    ends[sequence.key] = now
            self.held_bytes = max(self.held_bytes, speculative.cache.held_bytes)
        return [
            Decoded(list(sequence.generated), *firsts[sequence.key], ends[sequence.key], sequence.speculation)
            for sequence in sequences
        ]
