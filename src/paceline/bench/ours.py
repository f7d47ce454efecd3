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
"""The name of decoding without drafts, this engine's and every peer's."""


_ROUNDS, _FEWEST, _FEWEST_TOKENS = 2, 16, 1500
"""Times that the requests in flight are replaced while a flow is measured; how many end in it, and what they emit, at least."""
_EITHER_WAY = 0.5
"""Rounds by which measuring ends sooner or later than that."""


@dataclass
class Flow:
    """Decoding with requests always in flight, as far as it has come; measured for some rounds of as many tokens as those in
    flight come to, the first such round left out.

    at_once: requests in flight. token_ids: number of a request -> what it emitted, of those that ended. After each step: emitted,
    seconds: of all steps so far; held: tokens that those in flight have emitted.
    """

    at_once: int
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    emitted: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def stepped(self, emitted: int, ended: int, seconds: float) -> None:
        """Note a step. emitted: its tokens. ended: tokens, of all steps, of the requests that ended in it."""
        self.emitted.append((self.emitted[-1] if self.emitted else 0) + emitted)
        self.seconds.append(self.all_s + seconds)
        self.held.append((self.held[-1] if self.held else 0) + emitted - ended)

    @property
    def all_s(self) -> float:
        """Seconds of all steps."""
        return self.seconds[-1] if self.seconds else 0.0

    @property
    def enough(self) -> bool:
        """Whether it has come to the end of what is measured."""
        return len(self.token_ids) >= 2 * self.at_once and self.emitted[-1] >= self._after(self._rounds + _EITHER_WAY)

    @property
    def measured(self) -> tuple[int, int]:
        """Steps behind which measuring begins and ends.

        It ends when those in flight hold as much as when it began, as nearly as there is such a moment: then as many prompts were
        read as answers were written.
        """
        began = bisect_left(self.emitted, self._after(0))
        early, late = (bisect_left(self.emitted, self._after(self._rounds + way)) for way in (-_EITHER_WAY, _EITHER_WAY))
        return began, min(range(early, late + 1), key=lambda step: abs(self.held[step] - self.held[began]))

    @property
    def measured_tokens(self) -> int:
        """Tokens of all requests together, while it is measured."""
        began, ended = self.measured
        return self.emitted[ended] - self.emitted[began]

    @property
    def measured_s(self) -> float:
        """Seconds for which it is measured."""
        began, ended = self.measured
        return self.seconds[ended] - self.seconds[began]

    @property
    def _rounds(self) -> float:
        return max(_ROUNDS, _FEWEST / self.at_once, _FEWEST_TOKENS / self._round)

    @property
    def _round(self) -> float:
        """Tokens of as many answers as are in flight."""
        # the first requests are cut short
        whole = [len(tokens) for number, tokens in self.token_ids.items() if number >= self.at_once]
        return self.at_once * sum(whole) / len(whole)

    def _after(self, rounds: float) -> float:
        """Tokens emitted by so many rounds after the one that is left out."""
        return (1.0 + rounds) * self._round


class EngineDecoder:
    """name: what its drafter was asked for by. temperature: 0 for greedy. seed: of every request. keeps: what it promises of
    plain decoding, "text", "law" or "nothing". held_bytes: the most its cache of the target held between steps. took_s, ran_s:
    seconds of all answers, and those in which the thread that decodes had a core."""

    def __init__(self, name: str, engine: Engine, temperature: float = 0.0, seed: int = 0, keeps: str = "text") -> None:
        self.name, self.keeps, self._engine = name, keeps, engine
        self._temperature, self._seed = temperature, seed
        self.held_bytes = 0
        self.took_s = self.ran_s = 0.0

    def begin(self) -> None:
        self._engine.speculative.drafter.forget()

    def decode(self, prompt: Many[int], max_tokens: int) -> Decoded:
        """As `Decoder`. Raises what ended the request where the engine gave it up, and RequestError."""
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
        """Keep `at_once` requests in flight, each prompt in its turn over and over, until enough is measured; the flow, always
        the same one, is given after every step. Raises as `decode` does.

        The first ones are cut short, each elsewhere, so that requests end one by one from the beginning, as they do in the end
        whatever drafts: where they all end together as many prompts wait to be read at once, and it is chance how much of that
        is measured.
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
        # what was cut short would count as an answer, and a quick one
        error = next((one.error for one in progress if one.error is not None), None)
        if error is not None:
            raise error
        return progress
