"""Meter: counters of running requests. Plain additions; names and text are made when metrics are read (`metrics`)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence as Many
from contextlib import aclosing
from time import perf_counter

from paceline.serve.asking import Ask, Delta, Ending
from paceline.serve.errors import APIError
from paceline.serve.pipe import Stats
from paceline.serve.recording import record

REASONS = ("stop", "length", "abort", "timeout", "error")
"""How a choice can end; "error" if the engine failed or refused it."""
_SUMS = (
    "steps",
    "rows",
    "sequences",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "draft_s",
    "forward_s",
    "verify_s",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
)
_STANDINGS = ("running", "waiting", "running_tokens", "held_tokens", "cache_tokens")
"""Fields of `Stats` that are replaced by each report; those in `_SUMS` are summed."""
_DEEPEST = 64
_MOST_SOURCES = 64
_OTHER = "other"
_RECENT = 256
_STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
_WAIT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_WHOLE_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
_TOKENS = tuple(float(digit * 10**power) for power in range(5) for digit in (1, 2, 5))


class Histogram:
    """Counts of values up to each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Meter:
    """Sums since the server started, over choices or HTTP responses.

    engine: sums over all reports, and the current values of the last.
    """

    def __init__(self) -> None:
        self.engine = Stats()
        self.restarts = 0
        self.responses = Counter[int]()
        self.ended = Counter[str](dict.fromkeys(REASONS, 0))
        self.prompt_tokens = self.generation_tokens = self.decoding_steps = 0
        self.generation_s, self.timed_tokens = 0.0, 0
        """Seconds from first to last tokens of choices that ended, and the tokens after the first ones."""
        self.ttft_s, self.queue_s = Histogram(_WAIT_S), Histogram(_WAIT_S)
        self.token_gap_s, self.time_per_token_s = Histogram(_STEP_S), Histogram(_STEP_S)
        self.whole_s = Histogram(_WHOLE_S)
        self.request_prompt_tokens, self.request_generation_tokens = Histogram(_TOKENS), Histogram(_TOKENS)
        self.drafted_per_step = 0.0
        self._recent = deque[tuple[int, int]](maxlen=_RECENT)

    @property
    def tau(self) -> float:
        """Mean tokens per decoding step, over the last choices that ended; 0 if none has."""
        return sum(tokens for tokens, _ in self._recent) / max(sum(steps for _, steps in self._recent), 1)

    def responded(self, status: int) -> None:
        self.responses[status] += 1

    def engine_restarted(self) -> None:
        """Note a restart: all running and waiting sequences are lost."""
        self.restarts += 1
        self.engine.running = self.engine.waiting = self.engine.running_tokens = self.engine.held_tokens = 0

    def step(self, stats: Stats) -> None:
        """Add a report of the engine."""
        total = self.engine
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + getattr(stats, name))
        for name in _STANDINGS:
            setattr(total, name, getattr(stats, name))
        deep = stats.accepted_by_depth[:_DEEPEST]
        total.accepted_by_depth += [0] * (len(deep) - len(total.accepted_by_depth))
        for depth, count in enumerate(deep):
            total.accepted_by_depth[depth] += count
        sources = total.accepted_by_source
        for source, count in stats.accepted_by_source.items():
            name = source if source in sources or len(sources) < _MOST_SOURCES else _OTHER
            sources[name] = sources.get(name, 0) + count
        for seconds in stats.queued_s:
            self.queue_s.observe(seconds)
        if stats.drafts:
            self.drafted_per_step = stats.draft_tokens / stats.drafts

    async def watched(
        self, asks: Many[Ask], answered: Callable[[Many[Choice]], AsyncGenerator[tuple[int, Delta], None]]
    ) -> AsyncGenerator[tuple[int, Delta], None]:
        """The items of `answered`, which gets a `Choice` per ask and reports each delta to it on arrival; closed with this one.

        A request that is refused before any output counts only among the responses, by status.
        """
        choices = [Choice(self, len(ask.prompt)) for ask in asks]
        reason = "abort"
        try:
            async with aclosing(answered(choices)) as deltas:
                async for one in deltas:
                    yield one
        except Exception as error:
            reason = "error"
            if isinstance(error, APIError) and not any(choice.begun for choice in choices):
                choices.clear()
            raise
        finally:
            for choice in choices:
                choice.ended(reason)

    def choice_ended(self, steps: int, tokens: int) -> None:
        self.decoding_steps += steps
        if steps:
            self._recent.append((tokens, steps))


class Choice:
    """One choice, from the beginning of its request to its end."""

    def __init__(self, meter: Meter, prompt_tokens: int) -> None:
        self._meter, self._record, self._prompt_tokens = meter, record(), prompt_tokens
        self._first_s = self._last_s = 0.0
        self._tokens = 0
        self._over = False
        self.begun = False

    def _begin(self) -> None:
        self.begun = True
        self._meter.request_prompt_tokens.observe(self._prompt_tokens)
        self._record.choices += 1
        self._record.prompt_tokens += self._prompt_tokens

    def brought(self, delta: Delta) -> None:
        if not self.begun:
            self._begin()
        if delta.tokens:
            self.tokens(len(delta.tokens))
        if delta.ending is not None:
            self.ended(delta.ending.reason, delta.ending)

    def tokens(self, count: int) -> None:
        """Count the tokens of one step; the first ones mean that the prompt was processed. A gap is the time since the last step
        divided by the step's tokens."""
        now, meter = perf_counter(), self._meter
        if self._tokens:
            meter.token_gap_s.observe((now - self._last_s) / count, count)
        else:
            self._first_s = now
            meter.prompt_tokens += self._prompt_tokens
            meter.ttft_s.observe(now - self._record.begun_s)
            if self._record.ttft_s is None:
                self._record.ttft_s = now - self._record.begun_s
        self._last_s = now
        self._tokens += count
        meter.generation_tokens += count

    def ended(self, reason: str, ending: Ending | None = None) -> None:
        """Note the end; a no-op after the first call."""
        if self._over:
            return
        if not self.begun:
            self._begin()
        self._over = True
        meter, one = self._meter, self._record
        meter.ended[reason if reason in REASONS else "error"] += 1
        meter.whole_s.observe(perf_counter() - one.begun_s)
        meter.request_generation_tokens.observe(self._tokens)
        if self._tokens > 1:
            meter.generation_s += self._last_s - self._first_s
            meter.timed_tokens += self._tokens - 1
            meter.time_per_token_s.observe((self._last_s - self._first_s) / (self._tokens - 1))
        steps = int(ending.speculation.get("num_spec_steps", 0)) if ending else 0
        meter.choice_ended(steps, self._tokens)
        one.reasons.append(reason)
        one.tokens += self._tokens
        one.steps += steps
