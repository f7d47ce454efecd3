"""Contest: several ways to decode the same prompts, in turns, so that changes of the machine's speed affect all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence as Many
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

from paceline.bench.loops import looped_tokens
from paceline.sequence import Speculation


@dataclass(frozen=True)
class Decoded:
    """One decoding. token_ids: emitted tokens. first_s, first_tokens: when the first tokens came, and how many; total_s: when it
    ended. Only for this engine: speculation: counts of drafted and accepted tokens; steps: those after the first tokens; spent_s:
    seconds of these steps by part."""

    token_ids: list[int]
    first_s: float
    first_tokens: int
    total_s: float
    speculation: Speculation | None = None
    steps: int = 0
    spent_s: Mapping[str, float] = field(default_factory=dict)


class Decoder(Protocol):
    """A way to decode greedily: this engine with a drafter, or a peer in one of its modes."""

    name: str

    def begin(self) -> None:
        """Called before a repeat: forget what earlier repeats taught about the same prompts."""

    def decode(self, prompt: Many[int], max_tokens: int) -> Decoded:
        """Decode until EOS or `max_tokens`, batch 1. prompt: token ids. Raises DecoderFailed if it cannot continue."""
        ...


class DecoderFailed(Exception):
    """A peer failed in its own code; the message is one sentence for its row."""


@dataclass
class Tally:
    """Results of one decoder on the prompts of a task. Times are seconds: per prompt the median repeat, summed over prompts."""

    runs: dict[int, list[Decoded]] = field(default_factory=dict)
    """Prompt -> its repeats."""
    error: str | None = None

    def add(self, prompt: int, decoded: Decoded) -> None:
        self.runs.setdefault(prompt, []).append(decoded)

    @property
    def total_s(self) -> float:
        return self._summed(lambda one: one.total_s)

    @property
    def first_s(self) -> float:
        return self._summed(lambda one: one.first_s)

    @property
    def tokens(self) -> int:
        """Tokens emitted in one repeat over all prompts, without EOS; counted in the same way for every decoder."""
        return round(self._summed(lambda one: len(one.token_ids)))

    @property
    def looped_tokens(self) -> int:
        """The tokens that end an answer in a loop."""
        return sum(looped_tokens(repeats[0].token_ids) for repeats in self.runs.values())

    @property
    def tokens_per_s(self) -> float:
        """Rate of whole answers, including the time for prompts."""
        return self.tokens / self.total_s

    def decode_tokens_per_s(self, plain: Tally) -> float | None:
        """Rate of the tokens after the first tokens of `plain`, plain decoding in the same engine; None if there are none."""
        # the first tokens of a mode may reach past the end of an answer
        later = sum(
            _middle(repeats, lambda one, first=plain.runs[prompt][0].first_tokens: max(len(one.token_ids) - first, 0))
            for prompt, repeats in self.runs.items()
        )
        seconds = self.decode_s(plain)
        return later / seconds if later > 0 and seconds > 0 else None

    def decode_s(self, plain: Tally) -> float:
        """Time from its first tokens to the end, plus the time by which its first tokens come later than those of `plain`: a
        draft model reads the prompt too, in some engines before the first token and in others after it."""
        return self._summed(lambda one: one.total_s - one.first_s) + max(self.first_s - plain.first_s, 0.0)

    def _summed(self, value: Callable[[Decoded], float]) -> float:
        """Sum over the prompts of the middle of their repeats."""
        return sum(_middle(repeats, value) for repeats in self.runs.values())

    @property
    def seconds(self) -> dict[str, list[list[float]]]:
        """Every measurement, prompt by prompt and repeat by repeat."""
        runs = self.runs.values()
        return {name: [[getattr(one, name) for one in repeats] for repeats in runs] for name in ("first_s", "total_s")}

    @property
    def answer_tokens(self) -> list[list[int]]:
        """Number of tokens of every answer, without EOS, prompt by prompt and repeat by repeat."""
        return [[len(one.token_ids) for one in repeats] for repeats in self.runs.values()]

    @property
    def speculation(self) -> Speculation:
        """The counts summed over all repeats and prompts."""
        return sum((one.speculation for one in self._all if one.speculation is not None), Speculation())

    @property
    def steps(self) -> int:
        """Steps after the first tokens, over all repeats and prompts."""
        return sum(one.steps for one in self._all)

    @property
    def step_ms(self) -> dict[str, float]:
        """Mean milliseconds of these steps, by part."""
        total: Counter[str] = Counter()
        for one in self._all:
            total.update(one.spent_s)
        return {part: seconds / max(self.steps, 1) * 1e3 for part, seconds in total.items()}

    @property
    def _all(self) -> list[Decoded]:
        return [one for repeats in self.runs.values() for one in repeats]

    def equal_prompts(self, other: Tally) -> int:
        """Number of prompts for which all repeats, of both tallies, emitted the same token ids."""
        return sum(
            all(one.token_ids == other.runs[prompt][0].token_ids for one in (*repeats, *other.runs[prompt]))
            for prompt, repeats in self.runs.items()
        )


def _middle(repeats: Many[Decoded], value: Callable[[Decoded], float]) -> float:
    """The median. If the repeats' texts differ in length, as under verifiers that keep only the distribution: the value of the
    repeat (the mean of the two) with the middle rate, since medians of times and of tokens would belong to different texts."""
    if len({len(one.token_ids) for one in repeats}) == 1:
        return median(map(value, repeats))
    ordered = sorted(repeats, key=lambda one: len(one.token_ids) / one.total_s)
    return (value(ordered[(len(ordered) - 1) // 2]) + value(ordered[len(ordered) // 2])) / 2


def answer(token_ids: Many[int], ends: frozenset[int]) -> list[int]:
    """The tokens before the first one that ends a text, which only some engines emit."""
    end = next((place for place, token in enumerate(token_ids) if token in ends), len(token_ids))
    return list(token_ids[:end])


@dataclass(frozen=True)
class Rules:
    """max_tokens: the longest answer. repeats: measured runs per prompt. ends: token ids that end a text."""

    max_tokens: int
    repeats: int
    ends: frozenset[int] = frozenset()


def contest(
    decoders: Many[Decoder], prompts: Many[Many[int]], rules: Rules, advance: Callable[[], None] = lambda: None
) -> dict[str, Tally]:
    """Let every decoder decode every prompt, in turns, after one uncounted warm-up each; returns name -> tally.

    Prompts keep their order in every repeat, so a drafter that learns from past answers sees a stream of similar requests, and
    never the same one twice. The order of the decoders rotates by one from prompt to prompt, so that none always follows the same
    one. A decoder that fails is not run again, and its tally has the error. advance: called after each decoding, also for those
    that are skipped after a failure.
    """
    tallies = {decoder.name: Tally() for decoder in decoders}
    turns = [(None, prompts[0])] + [(number, prompt) for _ in range(rules.repeats) for number, prompt in enumerate(prompts)]
    for turn, (number, prompt) in enumerate(turns):
        if not number:
            for decoder in decoders:
                decoder.begin()
        first = turn % len(decoders)
        for decoder in (*decoders[first:], *decoders[:first]):
            tally = tallies[decoder.name]
            if tally.error is None:
                try:
                    decoded = decoder.decode(prompt, rules.max_tokens)
                except DecoderFailed as error:
                    tally.error = str(error)
                else:
                    if number is not None:
                        tally.add(number, replace(decoded, token_ids=answer(decoded.token_ids, rules.ends)))
            advance()
    return tallies
