"""This engine as a decoder: one `Engine` per drafter over one target, timed step by step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass, field, replace
from itertools import cycle
from time import perf_counter, thread_time

from paceline.bench.contest import Decoded
from paceline.engine.engine import Engine, Progress
from paceline.learning.costs import Costs
from paceline.params import SamplingParams

_PARTS = ("draft", "forward", "verify", "commit")
PLAIN = "plain"
"""The name of decoding without drafts, for this engine and every peer."""


_ROUNDS, _FEWEST, _FEWEST_TOKENS = 2, 16, 1500
"""Minimum size of a measured flow: how often the requests in flight are replaced, how many requests end, and tokens emitted."""
_EITHER_WAY = 0.5
"""Rounds by which measuring may end earlier or later than that."""


@dataclass
class Flow:
    """The course of decoding with a constant number of requests in flight. A round is as many tokens as that many answers have;
    some rounds are measured, without the first one.

    at_once: requests in flight. token_ids: number of an ended request -> its tokens. One entry per step: emitted, seconds: of all
    steps so far; held: tokens emitted by the requests in flight.
    """

    at_once: int
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    emitted: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def stepped(self, emitted: int, ended: int, seconds: float) -> None:
        """Note a step. emitted: its tokens. ended: all tokens of the requests that ended in it."""
        self.emitted.append((self.emitted[-1] if self.emitted else 0) + emitted)
        self.seconds.append(self.all_s + seconds)
        self.held.append((self.held[-1] if self.held else 0) + emitted - ended)

    @property
    def all_s(self) -> float:
        """Seconds of all steps."""
        return self.seconds[-1] if self.seconds else 0.0

    @property
    def enough(self) -> bool:
        """Whether enough steps have run for the measurement."""
        return len(self.token_ids) >= 2 * self.at_once and self.emitted[-1] >= self._after(self._rounds + _EITHER_WAY)

    @property
    def measured(self) -> tuple[int, int]:
        """The steps after which measuring begins and ends.

        It ends at the step where the tokens held by the requests in flight are nearest to those at its beginning: then as many
        prompts were read as answers were written.
        """
        began = bisect_left(self.emitted, self._after(0))
        early, late = (bisect_left(self.emitted, self._after(self._rounds + way)) for way in (-_EITHER_WAY, _EITHER_WAY))
        return began, min(range(early, late + 1), key=lambda step: abs(self.held[step] - self.held[began]))

    @property
    def measured_tokens(self) -> int:
        """Tokens of all requests in the measured time."""
        began, ended = self.measured
        return self.emitted[ended] - self.emitted[began]

    @property
    def measured_s(self) -> float:
        """Measured time in seconds."""
        began, ended = self.measured
        return self.seconds[ended] - self.seconds[began]

    @property
    def _rounds(self) -> float:
        return max(_ROUNDS, _FEWEST / self.at_once, _FEWEST_TOKENS / self._round)

    @property
    def _round(self) -> float:
        """Mean tokens of `at_once` answers."""
        # without the first requests, which are cut short
        whole = [len(tokens) for number, tokens in self.token_ids.items() if number >= self.at_once]
        return self.at_once * sum(whole) / len(whole)

    def _after(self, rounds: float) -> float:
        """Tokens emitted up to `rounds` rounds after the one that is left out."""
        return (1.0 + rounds) * self._round


class EngineDecoder:
    """name: of its mode. temperature: 0 for greedy. seed: of every request. keeps: what it guarantees of plain decoding, "text",
    "law" or "nothing". held_bytes: peak size of its target cache between steps. took_s, ran_s: seconds of all answers, and the
    part in which the decoding thread had a core."""

    def __init__(self, name: str, engine: Engine, temperature: float = 0.0, seed: int = 0, keeps: str = "text") -> None:
        self.name, self.keeps, self._engine = name, keeps, engine
        self._temperature, self._seed = temperature, seed
        self.held_bytes = 0
        self.took_s = self.ran_s = 0.0

    def begin(self) -> None:
        self._engine.speculative.drafter.forget()

    def decode(self, prompt: Many[int], max_tokens: int) -> Decoded:
        """As in `Decoder`. Raises RequestError, and the error for which the engine gave up the request."""
        costs = self._engine.speculative.costs
        first_s, first_tokens, at_first = 0.0, 0, Costs()
        began, ran = perf_counter(), thread_time()
        sequence = self._engine.add(prompt, self._params(max_tokens), streamed=False)
        while sequence.finish_reason is None:
            self._step()
            if sequence.generated_tokens and not first_tokens:
                first_s, first_tokens, at_first = perf_counter() - began, sequence.generated_tokens, replace(costs)
        total_s = perf_counter() - began
        self.took_s += total_s
        self.ran_s += thread_time() - ran
        spent = {part: getattr(costs.spent, f"{part}_s") - getattr(at_first.spent, f"{part}_s") for part in _PARTS}
        # scheduling, stops and text
        spent["other"] = total_s - first_s - sum(spent.values())
        steps = costs.steps - at_first.steps
        return Decoded(list(sequence.generated), first_s, first_tokens, total_s, sequence.speculation, steps, spent)

    def decode_flow(self, prompts: Many[Many[int]], at_once: int, max_tokens: int) -> Iterator[Flow]:
        """Keep `at_once` requests in flight, cycling through the prompts, until enough is measured; yields the flow, always the
        same object, after every step. Raises as `decode` does.

        The first requests are cut short at different lengths, so that requests end one by one from the beginning, as they do
        later with any drafter. If they all ended together, many prompts would be read at once, and it would be chance how much of
        that is measured.
        """
        left = cycle(prompts)
        numbers: dict[int, int] = {}
        flow = Flow(at_once)
        while not flow.enough:
            began = perf_counter()
            while len(numbers) - len(flow.token_ids) < at_once:
                number = len(numbers)
                most = max_tokens if number >= at_once else -(-max_tokens * (number + 1) // at_once)
                numbers[self._engine.add(next(left), self._params(most), streamed=False).key] = number
            emitted = ended = 0
            for one in self._step():
                emitted += len(one.outcome.verdict.tokens)
                if one.finished:
                    flow.token_ids[numbers[one.sequence.key]] = list(one.sequence.generated)
                    ended += one.sequence.generated_tokens
            flow.stepped(emitted, ended, perf_counter() - began)
            yield flow
        self._engine.abort_all()

    def _params(self, max_tokens: int) -> SamplingParams:
        return SamplingParams(max_tokens=max_tokens, temperature=self._temperature, seed=self._seed)

    def _step(self) -> list[Progress]:
        progress = self._engine.step()
        self.held_bytes = max(self.held_bytes, self._engine.speculative.cache.held_bytes)
        # a request that failed would otherwise count as a short, fast answer
        error = next((one.error for one in progress if one.error is not None), None)
        if error is not None:
            raise error
        return progress
