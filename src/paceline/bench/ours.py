"""This engine as a decoder: one `Engine` per drafter over one target, timed step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass, field, replace
from itertools import cycle
from time import perf_counter

from paceline.bench.contest import Decoded
from paceline.costs import Costs
from paceline.engine.engine import Engine, Progress
from paceline.params import SamplingParams

_PARTS = ("draft", "forward", "verify", "commit")
PLAIN = "plain"
"""The name of decoding without drafts, this engine's and every peer's."""


_ROUNDS, _FEWEST = 2, 16
"""Times that the requests in flight are replaced while a flow is measured, and how many end in it at least."""


@dataclass
class Flow:
    """Decoding with requests always in flight, as far as it has come. token_ids: number of a request -> what it emitted, of those
    that ended. all_s: seconds of all steps. tokens, seconds: what was emitted, and in how long, since the first in flight had
    ended; before, there is more to read than to write."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    all_s: float = 0.0
    tokens: int = 0
    seconds: float = 0.0


class EngineDecoder:
    """name: what its drafter was asked for by. temperature: 0 for greedy. seed: of every request. keeps: what it promises of
    plain decoding, "text", "law" or "nothing". held_bytes: the most its cache of the target held between steps."""

    def __init__(self, name: str, engine: Engine, temperature: float = 0.0, seed: int = 0, keeps: str = "text") -> None:
        self.name, self.keeps, self._engine = name, keeps, engine
        self._temperature, self._seed = temperature, seed
        self.held_bytes = 0

    def begin(self) -> None:
        self._engine.speculative.drafter.forget()

    def decode(self, prompt: Many[int], max_tokens: int) -> Decoded:
        costs = self._engine.speculative.costs
        first_s, first_tokens, at_first = 0.0, 0, Costs()
        began = perf_counter()
        sequence = self._engine.add(prompt, self._params(max_tokens))
        while sequence.finish_reason is None:
            self._step()
            if sequence.generated_tokens and not first_tokens:
                first_s, first_tokens, at_first = perf_counter() - began, sequence.generated_tokens, replace(costs)
        total_s = perf_counter() - began
        spent = {part: getattr(costs.spent, f"{part}_s") - getattr(at_first.spent, f"{part}_s") for part in _PARTS}
        # scheduling, stops and text
        spent["other"] = total_s - first_s - sum(spent.values())
        steps = costs.steps - at_first.steps
        return Decoded(list(sequence.generated), first_s, first_tokens, total_s, sequence.speculation, steps, spent)

    def decode_flow(self, prompts: Many[Many[int]], at_once: int, max_tokens: int) -> Iterator[Flow]:
        """Keep `at_once` requests in flight, each prompt in its turn over and over, until enough have ended; the flow, always
        the same one, is given after every step. Raises RequestError.

        When it is first measured and when it ends as much is in flight, half written in the mean: whoever writes faster has no
        fewer prompts to read for what it wrote.
        """
        params, left = self._params(max_tokens), cycle(prompts)
        numbers: dict[int, int] = {}
        flow = Flow()
        while len(flow.token_ids) < at_once + max(_ROUNDS * at_once, _FEWEST):
            began, measured = perf_counter(), len(flow.token_ids) >= at_once
            while len(numbers) - len(flow.token_ids) < at_once:
                numbers[self._engine.add(next(left), params).key] = len(numbers)
            emitted = 0
            for one in self._step():
                emitted += len(one.outcome.verdict.tokens)
                if one.finished:
                    flow.token_ids[numbers[one.sequence.key]] = list(one.sequence.generated)
            seconds = perf_counter() - began
            flow.all_s += seconds
            if measured:
                flow.tokens, flow.seconds = flow.tokens + emitted, flow.seconds + seconds
            yield flow
        self._engine.abort_all()

    def _params(self, max_tokens: int) -> SamplingParams:
        return SamplingParams(max_tokens=max_tokens, temperature=self._temperature, seed=self._seed)

    def _step(self) -> list[Progress]:
        progress = self._engine.step()
        self.held_bytes = max(self.held_bytes, self._engine.speculative.cache.held_bytes)
        return progress
