"""Sequence: the authoritative state of one request, on the host. It holds no tensors.

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

    Drafted and accepted tokens are counted before a stop cuts an accepted path, so that short answers do not bias acceptance;
    emitted tokens are those that the answer really holds. Counts of several answers can be added, also with `sum`.
    """

    steps: int = 0
    target_forwards: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    predicted_tokens: float = 0.0
    """What the policy expected all steps to emit, from the acceptance it had learnt by then."""
    drafted_to: dict[int, int] = field(default_factory=dict)
    """Depth -> steps whose deepest drafted node had that depth."""
    accepted_to: dict[int, int] = field(default_factory=dict)
    """The same for accepted nodes, over steps that drafted any; depth 0 where none was accepted."""

    def drafted(self, deepest: int, accepted: int) -> None:
        """Count a step that drafted: its deepest node, and the deepest that was accepted, 0 for none."""
        # Counters would count faster, but `dataclasses.asdict` does not copy them correctly
        self.drafted_to[deepest] = self.drafted_to.get(deepest, 0) + 1
        self.accepted_to[accepted] = self.accepted_to.get(accepted, 0) + 1

    def __add__(self, other: Speculation) -> Speculation:
        """The counts of both."""
        return Speculation(*(_added(getattr(self, one.name), getattr(other, one.name)) for one in fields(self)))

    def __radd__(self, zero: int) -> Speculation:
        """For `sum`, which begins with 0."""
        return self

    @property
    def tau(self) -> float:
        """Mean tokens emitted per decoding step of the target (prefill chunks emit none and do not count)."""
        return self.emitted_tokens / self.steps if self.steps else 0.0

    @property
    def predicted_tau(self) -> float:
        """The tau that the policy expected, step by step, before verification."""
        return self.predicted_tokens / self.steps if self.steps else 0.0

    @property
    def drafted_by_depth(self) -> list[int]:
        """For depth 1, 2, ... the steps in which a node of that depth was drafted."""
        return self._by_depth(self.drafted_to)

    @property
    def accepted_by_depth(self) -> list[int]:
        """The same for accepted nodes, down to the deepest depth that was drafted."""
        return self._by_depth(self.accepted_to)

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Share of the steps that drafted to depth 1, 2, ... in which a node of that depth was accepted."""
        return [right / steps for right, steps in zip(self.accepted_by_depth, self.drafted_by_depth, strict=True)]

    def _by_depth(self, deepest: Mapping[int, int]) -> list[int]:
        """Steps that reached each depth, from counts by deepest depth: so a step updates one count, not one per depth."""
        depths = range(max(self.drafted_to, default=0), 0, -1)
        return [*accumulate(deepest.get(depth, 0) for depth in depths)][::-1]


def _added(one: Any, other: Any) -> Any:
    """The sum of two numbers, or of two counts by depth."""
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
    """Tokens that the answer is expected to resemble, for drafters that draft from a reference."""
    tenant: str = ""
    """Whose request it is: nothing learnt from one tenant's text is shown to another."""
    payer: str = ""
    """Whose share of the engine the request uses: one payer may have many tenants."""
    priority: int = 0
    """The smaller the sooner it is admitted, and the later it is preempted."""
    drafters: frozenset[str] | None = None
    """Names of the drafters that may draft for it; None where the policy chooses, empty for none."""
    nodes: int | None = None
    """Most drafted tokens per step; None where the policy chooses."""
    streamed: bool = True
    """Whether its text is read as it grows; if not, no text is given out before its end, unless it may stop at a string."""
    constraint: Constraint | None = None
    """Constrains the answer to `params.grammar`."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Per generated token, where `params.logprobs` asks for it."""
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    """Per prompt token, where `params.prompt_logprobs` asks for it; None for the first."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache at admission."""
    stop: str | int | None = None
    """The stop string or the token id that ended it, if one did."""
    read_texts: int = 0
    """A hash of the texts that its drafters were built from (`Drafter.read_texts`)."""
    keeps: str = ""
    """What its answer keeps of plain decoding, as `Completion.keeps`; set at admission, since the verifier may be replaced."""
    tokens: list[int] = field(init=False)
    sources: list[str] = field(default_factory=list)
    """Per generated token, the drafter that proposed it, or "" where the target chose it unaided."""
    generated_counts: Counter[int] = field(default_factory=Counter)
    shape: array[float] | None = None
    """Bias, bans and penalties behind these tokens as compiled code reads them (`kernels/choices/shapes`), once made."""
    finish_reason: str | None = None
    speculation: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs.append(None)
        self.prompt_set = frozenset(self.prompt)
        # these never change, and every step reads them
        self.shapes_logits, self.plain_greedy = self.params.shapes_logits, self.params.plain_greedy

    @cached_property
    def prompt_numbers(self) -> array[float]:
        """The distinct tokens of the prompt as compiled code reads them; made once, since there may be thousands."""
        return array("d", self.prompt_set)

    @cached_property
    def draws_seed(self) -> int:
        """Seed of its draws that are not the target's choice; no two requests of an engine share one, nor two that are drafted
        from different texts. Else, where a request's seed is used again, a draft taken from an earlier answer would depend on the
        numbers by which that answer was drawn, and which now judge the draft."""
        return stream(self.seed, "request", self.key, told_apart(self.prompt, self.reference, (self.read_texts,)))

    @property
    def root(self) -> int:
        """The last committed token."""
        return self.tokens[-1]

    @property
    def tells_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens are still missing."""
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
            # `Counter.update` takes three times as long
            counts[token] = counts.get(token, 0) + 1
        if self.constraint is not None:
            self.constraint.commit(tokens)

    def take_back(self, length: int) -> None:
        """Keep the first `length` tokens, at least the prompt. It is never used on a request, only on a cascade's copy that runs
        ahead of it; that copy's `sources` are not used, and stay as they are.
        """
        self.shape = None
        for token in self.tokens[length:]:
            self.generated_counts[token] -= 1
            if not self.generated_counts[token]:
                # a penalty reads which tokens there are
                del self.generated_counts[token]
        del self.tokens[length:]
