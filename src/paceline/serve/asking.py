"""Requests from routes to the engine and its answers: plain data, the same on both sides of the pipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence as Many
from dataclasses import dataclass, field
from typing import Any

from paceline.logprobs import TokenLogprobs
from paceline.params import Grammar, SamplingParams


@dataclass(frozen=True)
class Ask:
    """One choice of one request.

    prompt: token ids. reference: token ids the answer is expected to resemble. tenant: who sent the request. payer: whose share
    of the engine it uses, whatever its tenant. priority: smaller runs sooner. drafters: names of drafters that may draft for it;
    None for the server's default, empty for none. nodes: most drafted tokens per step. trace: report the drafted tokens of every
    step.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    reference: tuple[int, ...] = ()
    tenant: str = ""
    payer: str = ""
    priority: int = 0
    drafters: tuple[str, ...] | None = None
    nodes: int | None = None
    trace: bool = False


@dataclass(frozen=True)
class Drafted:
    """Rejected tokens of one step: nodes of the tree that were not accepted.

    tokens: their ids. parents: per token the index of its parent in `tokens`, or -1 - i if its parent is the i-th token that the
    step emitted (counted from 1; -1 for the step's root). sources: per token the drafter that proposed it.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepTrace:
    """One step of one choice, when `Ask.trace` was set.

    emitted: how many of the delta's tokens it emitted. drafted, accepted: candidates below the root. draft_s, forward_s,
    verify_s: seconds of the whole step, shared by all sequences in flight. rows: of the forward pass, over the batch.
    """

    emitted: int
    drafted: int
    accepted: int
    rejected: Drafted
    draft_s: float
    forward_s: float
    verify_s: float
    rows: int


@dataclass(frozen=True)
class Ending:
    """Why and how a choice ended.

    reason: "stop", "length", "timeout", "abort" or "error"; for "error", `error` is one sentence about the failure. stop: the
    stop string or stop token id that ended it, if one did. cached_tokens: prompt tokens found in the cache, not computed again.
    accepted_reference_tokens, rejected_reference_tokens: tokens drafted from `reference`. speculation: the counts of
    `Speculation`, and `lossless`, `keeps` ("text", "law" or "nothing"), `drafter`, `policy`, `verifier`, `target`.
    """

    reason: str
    seed: int
    stop: str | int | None = None
    cached_tokens: int = 0
    accepted_reference_tokens: int = 0
    rejected_reference_tokens: int = 0
    speculation: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Delta:
    """Output of one step for one choice.

    text: new text that may be shown. tokens: ids that became final; text that a stop string may still cut off comes later.
    sources: per token the drafter that proposed it, "" for the target itself. logprobs: per token, if requested.
    prompt_logprobs: if requested, once, before any token; None for the first token, which nothing precedes.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    steps: tuple[StepTrace, ...] = ()
    ending: Ending | None = None


class Service(ABC):
    """The engine and the tokenizer as routes see them. Slow work runs outside the event loop, within limits.

    model: the name it is served under. context_length: tokens of prompt and answer together. defaults: sampling parameters from
    the model's generation_config.json, by the names of `SamplingParams`. drafters: names a request may choose from.
    default_drafters: used when it chooses none. drafter_notes: per name the first line of its description and its source. target,
    policy, verifier: what the engine runs, as its reports name them. special_tokens: such as {"eos_token": "</s>"}, by the names
    of tokenizer_config.json. chat_template: its Jinja source, for clients that render prompts themselves.
    """

    model: str
    created: int
    context_length: int
    vocab_size: int
    defaults: Mapping[str, Any]
    has_chat_template: bool
    drafters: tuple[str, ...]
    default_drafters: tuple[str, ...]
    drafter_notes: Mapping[str, tuple[str, str]]
    target: str
    policy: str
    verifier: str
    special_tokens: Mapping[str, str]
    chat_template: str | None

    @abstractmethod
    async def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text. Raises APIError: 400 if it is too long or not Unicode, 429 and 503 if too many requests wait."""

    @abstractmethod
    async def chat(
        self,
        messages: Many[Mapping[str, Any]],
        tools: Many[Mapping[str, Any]] = (),
        *,
        answer_begun: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation in the model's chat template. answer_begun: the last message is an assistant's and is
        continued. variables: further variables of the template. Raises APIError as `encode` does."""

    @abstractmethod
    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """The bytes of one token; they may be part of a character."""

    async def special_id(self, marker: str) -> int | None:
        """The id of `marker` if it is one special token, which decoded text leaves out; None for any other text."""
        ids = await self.encode(marker, add_special=False)
        alone = len(ids) == 1 and not self.decode(ids) and self.decode(ids, skip_special_tokens=False).strip() == marker
        return ids[0] if alone else None

    @abstractmethod
    async def check_grammar(self, grammar: Grammar) -> None:
        """Raises APIError: 400 if the grammar cannot be compiled within the limits, 429 and 503 if no grammar can be compiled
        now."""

    @abstractmethod
    def check_room(self, choices: int) -> None:
        """Raises APIError if `submit` would now refuse any request with this number of choices: 429 when the queue is full, 503
        when the server is shutting down. Routes call it before they prepare texts and grammars."""

    @abstractmethod
    def submit(self, asks: Many[Ask]) -> AsyncGenerator[tuple[int, Delta], None]:
        """Run the choices of a request; yields (index of the choice, its next delta). The last delta of a choice has an `Ending`.

        Leaving the iteration early (`aclose`) ends all choices. Raises APIError: 429 when the queue is full, 503 when the engine
        fails, the server is shutting down, or the request times out before any choice has a token.
        """
