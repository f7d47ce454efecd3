"""EngineService: the `Service` of the routes, on top of one engine process and one tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence as Many
from dataclasses import dataclass, replace
from functools import partial
from time import time
from typing import Any

from paceline.models.checkpoint import name_of
from paceline.models.tokenizer import Tokenizer
from paceline.params import Grammar
from paceline.serve.asking import Ask, Delta, Ending, Service
from paceline.serve.errors import APIError, invalid
from paceline.serve.meter import Choice, Meter
from paceline.serve.pipe import Ready, untellable
from paceline.serve.process import EngineProcess
from paceline.serve.recording import record
from paceline.serve.settings import Settings
from paceline.serve.texts import Texts, sampling_defaults
from paceline.serve.turns import has_room

_GRACE_S = 10.0
"""After a request has timed out, interval of checks whether the engine is hung. While it is not, the request waits on, as a
forward pass of a large model over a long prompt may take longer; its output is then delivered."""
_PARTING_S = 1.0
"""The same while the server shuts down; after it the request ends with the output it has."""


class EngineService(Service):
    """ready: properties of the engine. meter: counts all requests."""

    def __init__(self, engine: EngineProcess, tokenizer: Tokenizer, settings: Settings, ready: Ready, meter: Meter) -> None:
        self._engine, self._settings, self._meter = engine, settings, meter
        self.texts = Texts(tokenizer, ready.vocab_size, settings.max_prompt_chars, settings.batch + settings.queue)
        self.model = settings.served_name or name_of(tokenizer.path)
        self.created = int(time())
        self.context_length, self.vocab_size = ready.context_length, ready.vocab_size
        self.defaults = sampling_defaults(tokenizer.path)
        self.has_chat_template, self.chat_template = tokenizer.has_chat_template, tokenizer.chat_template
        self.special_tokens: Mapping[str, str] = tokenizer.special_tokens
        self.drafters, self.default_drafters = ready.drafters, ready.default_drafters
        self.drafter_notes: Mapping[str, tuple[str, str]] = ready.drafter_notes
        self.target, self.policy, self.verifier = ready.target, ready.policy, ready.verifier
        self.draining = self._parting = False
        self._inboxes = set[asyncio.Queue[_Letter]]()
        """The inbox of each request in flight."""
        self._special_ids = dict[str, int | None]()

    async def encode(self, text: str, add_special: bool = True) -> list[int]:
        return await self.texts.encode(text, add_special)

    async def chat(
        self,
        messages: Many[Mapping[str, Any]],
        tools: Many[Mapping[str, Any]] = (),
        *,
        answer_begun: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        return await self.texts.chat(messages, tools, answer_begun, variables or {})

    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        return self.texts.decode(ids, skip_special_tokens)

    def piece(self, token: int) -> bytes:
        return self.texts.piece(token)

    async def special_id(self, marker: str) -> int | None:
        if marker not in self._special_ids:
            self._special_ids[marker] = await super().special_id(marker)
        return self._special_ids[marker]

    async def check_grammar(self, grammar: Grammar) -> None:
        await self.texts.check(grammar)

    def check_room(self, choices: int) -> None:
        if self.draining:
            raise _shutting_down()
        load, bound = self._engine.load, self._settings.batch + self._settings.queue
        # a request with more choices than the queue holds is accepted when the server is idle
        if load and not has_room(record().key, self._engine.held, load + choices, bound):
            raise APIError(429, "the server is busy; try again later", code="overloaded", retry_after_s=1)

    def submit(self, asks: Many[Ask]) -> AsyncGenerator[tuple[int, Delta], None]:
        # requests with different API keys are different tenants, whatever cache_salt they name
        key = record().key
        asks = asks if key is None else [replace(ask, tenant=f"{key}/{ask.tenant}", payer=str(key)) for ask in asks]
        return self._meter.watched(asks, partial(self._answered, asks))

    def expire_all(self) -> None:
        """End all requests in flight with the output they have; if the engine's step takes too long, with that sent before it."""
        self._parting = True
        for inbox in self._inboxes:
            inbox.put_nowait(_Letter())

    async def _answered(self, asks: Many[Ask], counted: Many[Choice]) -> AsyncGenerator[tuple[int, Delta], None]:
        """counted: the meter's choice per ask; it gets each delta on arrival, not when it is read here."""
        self.check_room(len(asks))
        if sentence := untellable(*asks):
            raise invalid(sentence)
        inbox: asyncio.Queue[_Letter] = asyncio.Queue()
        listeners = [_Inbox(inbox, choice, one, record().key) for choice, one in enumerate(counted)]
        numbers = dict[int, int]()
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(self._settings.request_timeout_s, inbox.put_nowait, _Letter())
        expired = begun = False
        unsaid = list[tuple[int, Delta]]()
        self._inboxes.add(inbox)
        try:
            for choice, ask in enumerate(asks):
                numbers[choice] = self._engine.ask(ask, listeners[choice])
            while numbers:
                letters = [await inbox.get()]
                while not inbox.empty():
                    letters.append(inbox.get_nowait())
                late = any(letter.choice is None for letter in letters)
                if late and not expired:
                    for number in numbers.values():
                        self._engine.expire(number)
                deltas = _read(letters)
                begun = begun or any(delta.tokens for delta in deltas.values())
                for choice, delta in deltas.items():
                    if delta.ending is not None:
                        self._engine.end(numbers.pop(choice))
                    if begun or delta.ending is None or delta.ending.reason != "timeout":
                        yield choice, delta
                    else:
                        unsaid.append((choice, delta))
                while begun and unsaid:
                    yield unsaid.pop(0)
                if late and numbers:
                    if expired and self._parting:
                        for choice in numbers:
                            listeners[choice].brought(Delta(ending=Ending("timeout", asks[choice].params.seed or 0)))
                    elif expired and self._engine.given_up():
                        raise APIError(503, "the engine does not answer", code="engine_silent", retry_after_s=5)
                    expired = True
                    alarm.cancel()
                    alarm = loop.call_later(_PARTING_S if self._parting else _GRACE_S, inbox.put_nowait, _Letter())
            if unsaid:
                if self._parting:
                    raise _shutting_down()
                sentence = "the time of this request was up before it had its turn; try again later"
                raise APIError(503, sentence, code="timed_out", retry_after_s=5)
        finally:
            self._inboxes.discard(inbox)
            alarm.cancel()
            for number in numbers.values():
                self._engine.end(number)


@dataclass(frozen=True)
class _Letter:
    """A delta or error for one choice; choice None: the request has timed out."""

    choice: int | None = None
    delta: Delta | None = None
    error: APIError | None = None


@dataclass(frozen=True)
class _Inbox:
    inbox: asyncio.Queue[_Letter]
    choice: int
    counted: Choice
    key: int | None

    def brought(self, delta: Delta) -> None:
        self.counted.brought(delta)
        self.inbox.put_nowait(_Letter(self.choice, delta))

    def failed(self, error: APIError) -> None:
        self.inbox.put_nowait(_Letter(self.choice, error=error))


def _shutting_down() -> APIError:
    return APIError(503, "the server is shutting down", code="shutting_down", retry_after_s=5)


def _read(letters: Many[_Letter]) -> dict[int, Delta]:
    """One delta per choice, several joined. Raises APIError if the engine refused or failed."""
    found = dict[int, Delta]()
    for letter in letters:
        if letter.error is not None:
            raise letter.error
        if letter.choice is not None and letter.delta is not None:
            before = found.get(letter.choice)
            found[letter.choice] = _joined(before, letter.delta) if before else letter.delta
    return found


def _joined(first: Delta, second: Delta) -> Delta:
    return replace(
        second,
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        sources=first.sources + second.sources,
        logprobs=first.logprobs if second.logprobs is None else (first.logprobs or ()) + second.logprobs,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        steps=first.steps + second.steps,
        ending=first.ending or second.ending,
    )
