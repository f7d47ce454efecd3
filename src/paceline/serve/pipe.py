"""The pipe between the server and its engine: one JSON object a line, checked on both sides; nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter

from paceline.logprobs import TokenLogprobs
from paceline.serve.asking import Ask, Delta

LONGEST_LINE_BYTES = 64 << 20
"""Of news: whoever sent a longer line is taken to have failed."""
_TOKEN_BYTES, _LIKELY_BYTES = 83, 38
"""Of one `TokenLogprobs` at most, without and per likeliest token beside it: ids of 10 digits, numbers of 24 characters."""
_REST_BYTES = 1 << 20
"""What else one delta may take."""
_MOST_LOGPROBS = 1 << 22
"""Log-probabilities that the answers of one request may have: half a kilobyte each, while it is written."""
_PART_TOKENS = 256
"""Of a prompt, in one line: with 20 others each they take 10 ms to read, and all that time no other thread runs."""


@dataclass(frozen=True)
class Order:
    """From the server: run this ask under this number, or, without one, end what runs under it. late: its time is up, and its
    ending is still to be told."""

    number: int
    ask: Ask | None = None
    late: bool = False


@dataclass(frozen=True)
class Ready:
    """What the engine turned out to be, once it is loaded; see `Service`."""

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
    """What the engine did since it last told, and how it stands now.

    Sums: steps, rows of forwards, sequences in them, candidates drafted and accepted (by depth, by source; drafts: steps of
    sequences that drafted anything), seconds, preemptions, prompt tokens asked for and found in the cache. queued_s: what each
    waited that began meanwhile. Now: sequences running and waiting, tokens of those running, tokens held with texts that
    ended, which make room when it is needed, and how many fit.
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
    """From the engine. deltas, refused, busy: by number; a refusal is one sentence, for good or for now. prompts: by number,
    part of the `prompt_logprobs` of a delta that is still to come. failure: why the engine ends, for everyone."""

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
    """In as many lines as it takes: what deltas tell of prompts goes before them in parts, between which the server is free."""
    deltas = {}
    for number, delta in news.deltas.items():
        entries = delta.prompt_logprobs or ()
        for first in range(0, len(entries), _PART_TOKENS):
            yield News(prompts={number: entries[first : first + _PART_TOKENS]})
        deltas[number] = replace(delta, prompt_logprobs=None) if entries else delta
    yield replace(news, deltas=deltas)


def untellable(*asks: Ask) -> str | None:
    """Why what is asked of probabilities is too much, in one sentence; None where it is not. Choices of one request are held
    together until the last has ended; of their prompts they may tell no more than the longest line has room for."""
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
    """How one kind of message is written and read. Reading raises ValueError for anything else."""

    def __init__(self, kind: type[Message]) -> None:
        self._adapter = TypeAdapter[Message](kind)

    def write(self, message: Message) -> bytes:
        return self._adapter.dump_json(message, exclude_defaults=True) + b"\n"

    def read(self, line: bytes) -> Message:
        return self._adapter.validate_json(line)
