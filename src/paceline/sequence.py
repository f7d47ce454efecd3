"""Sequence: the host's truth about one request. No tensors live here.

`tokens` holds every committed token, prompt included. Caches hold a prefix of it, and the last one, the root, is fed by the
next forward.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate
from typing import Any

from paceline.constraint import Constraint
from paceline.logprobs import TokenLogprobs
from paceline.noise import stream, told_apart
from paceline.params import SamplingParams


@dataclass
class Speculation:
    """What speculation did for one sequence.

    What was drafted and accepted is counted before a stop cuts an accepted path, so that acceptance is unbiased by short
    answers; what was emitted is what the answer really holds. Those of several answers can be added up, by `sum` too.
    """

    steps: int = 0
    target_forwards: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    predicted_tokens: float = 0.0
    """What the policy expected all steps to emit, from the acceptance it had learnt by then."""
    drafted_to: dict[int, int] = field(default_factory=dict)
    """Depth -> steps in which the deepest node that was drafted was of that depth."""
    accepted_to: dict[int, int] = field(default_factory=dict)
    """The same of nodes that were accepted, in steps that drafted any; 0 for none."""

    def drafted(self, deepest: int, accepted: int) -> None:
        """Count a step that drafted: its deepest node, and the deepest that was accepted, 0 for none."""
        # Counters would count faster, but `dataclasses.asdict` makes other ones of them
        self.drafted_to[deepest] = self.drafted_to.get(deepest, 0) + 1
        self.accepted_to[accepted] = self.accepted_to.get(accepted, 0) + 1

    def __add__(self, other: Speculation) -> Speculation:
        """The counts of both."""
        return Speculation(*(_added(getattr(self, one.name), getattr(other, one.name)) for one in fields(self)))

    def __radd__(self, zero: int) -> Speculation:
        """What `sum` begins with adds nothing."""
        return self

    @property
    def tau(self) -> float:
        """Mean tokens emitted per decoding step of the target (prefill chunks emit none and do not count)."""
        return self.emitted_tokens / self.steps if self.steps else 0.0

    @property
    def predicted_tau(self) -> float:
        """What tau was expected to be, step by step, before the target spoke."""
        return self.predicted_tokens / self.steps if self.steps else 0.0

    @property
    def drafted_by_depth(self) -> list[int]:
        """For depth 1, 2, ... the steps in which a node of that depth was drafted."""
        return self._by_depth(self.drafted_to)

    @property
    def accepted_by_depth(self) -> list[int]:
        """The same of nodes that were accepted, as far as any were drafted."""
        return self._by_depth(self.accepted_to)

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Share of the steps that drafted to depth 1, 2, ... in which a node of that depth was accepted."""
        return [right / steps for right, steps in zip(self.accepted_by_depth, self.drafted_by_depth, strict=True)]

    def _by_depth(self, deepest: Mapping[int, int]) -> list[int]:
        """Steps that reached each depth, from those by the deepest they reached: a step is counted once, and not once a depth."""
        depths = range(max(self.drafted_to, default=0), 0, -1)
        return [*accumulate(deepest.get(depth, 0) for depth in depths)][::-1]


def _added(one: Any, other: Any) -> Any:
    """Numbers, or counts by depth."""
    if not isinstance(one, dict):
        return one + other
    return {depth: one.get(depth, 0) + other.get(depth, 0) for depth in sorted({*one, *other})}


@dataclass(eq=False)
class Sequence:
    """One request in flight.

    key: identity under which caches and drafters keep state. seed: the noise of this request, whether given or drawn.
    stop_ids: token ids that end it: the model's EOS unless ignored, and the request's own.
    """

    key: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int] = frozenset()
    reference: tuple[int, ...] = ()
    """Tokens that the answer is expected to resemble; what drafts from a reference reads them."""
    tenant: str = ""
    """Whose request it is: nothing learnt from one tenant's text is shown to another."""
    payer: str = ""
    """Whose share of the engine it takes: one payer may have many tenants."""
    priority: int = 0
    """The smaller the sooner it is admitted, and the later it is preempted."""
    drafters: frozenset[str] | None = None
    """Names of the drafters that may draft for it; None for whatever the policy chooses, empty for none."""
    nodes: int | None = None
    """At most so many drafted tokens a step; None for whatever the policy chooses."""
    streamed: bool = True
    """Whether its text is read as it grows; if not, nothing of it is told before its end, unless it may stop at a string."""
    constraint: Constraint | None = None
    """What its answer must keep to, as `params.grammar` says."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Per generated token, where `params.logprobs` asks for it."""
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    """Per prompt token, where `params.prompt_logprobs` asks for it; None for the first."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache at admission."""
    stop: str | int | None = None
    """The stop string or the token id that ended it, if one did."""
    read_texts: int = 0
    """Tells apart the texts that its drafters have read (`Drafter.read_texts`)."""
    keeps: str = ""
    """What its answer keeps of plain decoding, as `Completion.keeps`: it was admitted under a verifier that may have changed."""
    tokens: list[int] = field(init=False)
    sources: list[str] = field(default_factory=list)
    """Per generated token, the drafter that proposed it, or "" where the target chose it unaided."""
    generated_counts: Counter[int] = field(default_factory=Counter)
    shape: array[float] | None = None
    """What compiled code is told of bias, bans and penalties behind these tokens (`kernels/choices/shapes`), once it asked."""
    finish_reason: str | None = None
    speculation: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs.append(None)
        self.prompt_set = frozenset(self.prompt)
        # these never change, and every step asks for them
        self.shapes_logits, self.plain_greedy = self.params.shapes_logits, self.params.plain_greedy

    @cached_property
    def prompt_numbers(self) -> array[float]:
        """The tokens of the prompt, each once, as compiled code is told of them: there may be thousands, at every commit."""
        return array("d", self.prompt_set)

    @cached_property
    def draws_seed(self) -> int:
        """Seed of its draws that are not the target's choice; no two requests of an engine share one, nor two that are drafted
        from different texts. Where a seed is used again, what drafts from earlier answers would else know the numbers by which
        these were drawn, and which now judge its drafts."""
        return stream(self.seed, "request", self.key, told_apart(self.prompt, self.reference, (self.read_texts,)))

    @property
    def root(self) -> int:
        """The last committed token."""
        return self.tokens[-1]

    @property
    def tells_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be told."""
        return 0 < len(self.prompt_logprobs) < len(self.prompt)

    @property
    def generated(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def generated_tokens(self) -> int:
        """How many tokens were generated so far."""
        return len(self.tokens) - len(self.prompt)

    def commit(self, tokens: tuple[int, ...], sources: tuple[str, ...]) -> None:
        """Append final tokens."""
        self.shape = None
        self.tokens.extend(tokens)
        self.sources.extend(sources)
        counts = self.generated_counts
        for token in tokens:
            # by Counter's own method it takes three times as long
            counts[token] = counts.get(token, 0) + 1
        if self.constraint is not None:
            self.constraint.commit(tokens)

    def take_back(self, length: int) -> None:
        """Keep so many tokens, the prompt's at least. Nothing of a request is ever taken back, much of a draft ahead of it is.
        Where tokens of that came from nobody asks.
        """
        self.shape = None
        for token in self.tokens[length:]:
            self.generated_counts[token] -= 1
            if not self.generated_counts[token]:
                # a penalty asks which tokens there are
                del self.generated_counts[token]
        del self.tokens[length:]
