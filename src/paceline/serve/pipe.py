"""The pipe between the server and its engine: one JSON object per line, validated on both sides; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter

from paceline.logprobs import TokenLogprobs
from paceline.serve.asking import Ask, Delta

LONGEST_LINE_BYTES = 64 << 20
"""Longest line of news: an engine that sends a longer one counts as failed."""
_TOKEN_BYTES, _LIKELY_BYTES = 83, 38
"""Most bytes of one `TokenLogprobs`: the token itself, and each likeliest token. Ids have 10 digits, numbers 24 characters."""
_REST_BYTES = 1 << 20
"""Most bytes of the rest of a delta."""
_MOST_LOGPROBS = 1 << 22
"""Most log-probabilities in the answers of one request: each takes half a kilobyte while the response is written."""
_PART_TOKENS = 256
"""Prompt tokens in one line: with 20 others each they take 10 ms to parse, during which no other thread runs."""


@dataclass(frozen=True)
class Order:
    """From the server: run this ask under this number, or, without an ask, end the one with this number. late: it timed out, and
    its ending is still to be sent."""

    number: int
    ask: Ask | None = None
    late: bool = False


@dataclass(frozen=True)
class Ready:
    """Properties of the engine, sent once it is loaded; see `Service`."""

    context_length: int
    vocab_size: int
    drafters: tuple[str, ...]
    default_drafters: tuple[str, ...]
    drafter_notes: dict[str, tuple[str, str]]
    target: str
    policy: str
    verifier: str


@dataclass
class Stats:
    """The engine's work since its last report, and its current state.

    Sums: steps, rows of forward passes, sequences in them, candidates drafted and accepted (by depth, by source; drafts: steps of
    sequences with a draft), seconds, preemptions, prompt tokens looked up and found in the cache. queued_s: time in the queue of
    each sequence started since then. Current: sequences running and waiting, tokens of the running ones; held_tokens: these and
    the tokens of ended texts, which are evicted on demand; cache_tokens: how many fit.
    """

    steps: int = 0
    rows: int = 0
    sequences: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    draft_s: float = 0.0
    forward_s: float = 0.0
    verify_s: float = 0.0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    queued_s: list[float] = field(default_factory=list)
    running: int = 0
    waiting: int = 0
    running_tokens: int = 0
    held_tokens: int = 0
    cache_tokens: int = 0


@dataclass(frozen=True)
class News:
    """From the engine. deltas, refused, busy: by number; refused (permanently) and busy (for now) hold one sentence. prompts: by
    number, part of the `prompt_logprobs` of a delta that is still to come. failure: why the engine ends, failing all asks."""

    # log-probabilities may be infinite
    __pydantic_config__: ClassVar = ConfigDict(ser_json_inf_nan="constants")

    deltas: dict[int, Delta] = field(default_factory=dict)
    prompts: dict[int, tuple[TokenLogprobs | None, ...]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    busy: dict[int, str] = field(default_factory=dict)
    stats: Stats | None = None
    ready: Ready | None = None
    failure: str | None = None


def parted(news: News) -> Iterator[News]:
    """News as several lines: the `prompt_logprobs` of deltas go first, in parts, so that the server can work in between."""
    deltas = {}
    for number, delta in news.deltas.items():
        entries = delta.prompt_logprobs or ()
        for first in range(0, len(entries), _PART_TOKENS):
            yield News(prompts={number: entries[first : first + _PART_TOKENS]})
        deltas[number] = replace(delta, prompt_logprobs=None) if entries else delta
    yield replace(news, deltas=deltas)


def untellable(*asks: Ask) -> str | None:
    """Why too many log-probabilities are requested, in one sentence; None if they are not too many. All choices of a request are
    held until the last has ended. Those of their prompts must fit into the longest line together."""
    reported = sum(ask.params.max_tokens * (1 + ask.params.logprobs) for ask in asks if ask.params.logprobs is not None)
    if reported > _MOST_LOGPROBS:
        return f"answers as long as these may be have {reported} log-probabilities, more than {_MOST_LOGPROBS}: lower max_tokens"
    telling = [ask for ask in asks if ask.params.prompt_logprobs is not None]
    count = max([ask.params.prompt_logprobs or 0 for ask in telling], default=0)
    most = (LONGEST_LINE_BYTES - _REST_BYTES) // (_TOKEN_BYTES + count * _LIKELY_BYTES)
    tokens = sum(len(ask.prompt) for ask in telling)
    if tokens <= most:
        return None
    whose = "this prompt has" if len(telling) == 1 else "those of all choices have"
    return f"log-probabilities of prompts, with {count} others each, are told of at most {most} tokens; {whose} {tokens}"


Message = TypeVar("Message")


class Line(Generic[Message]):
    """Serializes and parses one type of message. `read` raises ValueError for anything else."""

    def __init__(self, kind: type[Message]) -> None:
        self._adapter = TypeAdapter[Message](kind)

    def write(self, message: Message) -> bytes:
        return self._adapter.dump_json(message, exclude_defaults=True) + b"\n"

    def read(self, line: bytes) -> Message:
        return self._adapter.validate_json(line)
