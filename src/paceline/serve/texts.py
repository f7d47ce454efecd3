"""Texts: tokenising, templates and grammars in threads, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence as Many
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from paceline.constraint import GrammarError, GrammarsBusy
from paceline.models.base import ModelError
from paceline.models.checkpoint import name_of
from paceline.models.grammar import Grammars
from paceline.models.pieces import Pieces
from paceline.models.tokenizer import Tokenizer
from paceline.params import Grammar, SamplingParams
from paceline.serve.errors import APIError, invalid
from paceline.serve.lengths import characters
from paceline.serve.one_system import with_one_system
from paceline.serve.recording import record
from paceline.serve.turns import Turns

_THREADS = 2
_LONGEST_WAIT_S = 20.0
"""A template is a program that comes with the model; one that takes longer is assumed not to end."""
Result = TypeVar("Result")


class Texts:
    """The tokenizer of a model, run in a few threads. max_chars: of a text, or of all texts of a conversation together.
    most_waiting: texts per API key that may wait for a thread; the same number of grammars may wait."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_chars: int, most_waiting: int) -> None:
        self.tokenizer = tokenizer
        self._pieces, self._max_chars = Pieces(tokenizer, vocab_size), max_chars
        self._grammars = Grammars(self.tokenizer, vocab_size)
        self._texts, self._checks = Turns(most_waiting), Turns(most_waiting)
        # separate queues: texts do not wait for grammars, which may take seconds.
        # daemons, unlike the threads of an executor: a template that does not end must not keep the process from exiting
        for queue in (*[self._texts] * _THREADS, self._checks):
            Thread(target=_work_off, args=(queue,), name="texts", daemon=True).start()

    async def run(self, work: Callable[[], Result], queue: Turns | None = None) -> Result:
        """Run in a thread of `queue`, by default that of texts. Raises APIError: 400 for ModelError and if the work takes too
        long, 503 if other work kept it from starting in time, 429 if too many jobs of the request's key wait."""
        future: Future[Result] = Future()
        turns, key = queue or self._texts, record().key
        if not turns.put(key, future, work):
            raise _busy(429)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), _LONGEST_WAIT_S)
        except TimeoutError:
            if not future.running():
                raise _busy() from None
            raise invalid("the text of this request takes too long to prepare") from None
        except ModelError as error:
            # do not reveal the model's path to clients
            raise invalid(str(error).replace(str(self.tokenizer.path), name_of(self.tokenizer.path))) from None
        finally:
            turns.drop(key, future)

    async def encode(self, text: str, add_special: bool) -> list[int]:
        self._bound(len(text))
        return await self.run(lambda: self.tokenizer.encode(text, add_special))

    async def chat(
        self,
        messages: Many[Mapping[str, Any]],
        tools: Many[Mapping[str, Any]],
        answer_begun: bool,
        variables: Mapping[str, Any],
    ) -> list[int]:
        self._bound(characters(messages, tools, variables))

        def rendered(conversation: Many[Mapping[str, Any]]) -> list[int]:
            return self.tokenizer.chat(conversation, tools, answer_begun=answer_begun, variables=variables)

        def ids() -> list[int]:
            try:
                return rendered(messages)
            except ModelError:
                settled = with_one_system(messages)
                if settled == list(messages):
                    raise
                return rendered(settled)

        return await self.run(ids)

    async def check(self, grammar: Grammar) -> None:
        """Raises APIError: 400 if a grammar cannot be used, 503 while other grammars that take too long prevent compiling it."""
        try:
            await self.run(lambda: self._grammars.check(grammar), self._checks)
        except GrammarsBusy:
            raise _busy() from None
        except GrammarError as error:
            raise invalid(str(error)) from None

    def decode(self, ids: Many[int], skip_special_tokens: bool) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens)

    def piece(self, token: int) -> bytes:
        if token in self._pieces.names:
            return self._pieces.names[token].encode()
        return self._pieces.of[token] if token < len(self._pieces.of) else b""

    def _bound(self, chars: int) -> None:
        if chars > self._max_chars:
            raise APIError(400, f"the request holds more than {self._max_chars} characters of text", code="text_too_long")


def _busy(status: int = 503) -> APIError:
    return APIError(status, "the server is busy; try again later", code="overloaded", retry_after_s=1)


def _work_off(queue: Turns) -> None:
    """A thread's loop over the jobs of `queue`. No reference to a finished job is kept while it waits for the next."""
    while True:
        _work_on(*queue.get())


def _work_on(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        # the waiting request was cancelled
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def sampling_defaults(folder: Path) -> dict[str, Any]:
    """Sampling parameters in the checkpoint's generation_config.json, by the names of `SamplingParams`; invalid ones left out."""
    try:
        held = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    stated = {name: held[name] for name in names if isinstance(held, dict) and held.get(name) is not None}
    return {name: value for name, value in stated.items() if _valid(name, value)}


def _valid(name: str, value: Any) -> bool:
    try:
        SamplingParams.model_validate({name: value})
    except ValueError:
        return False
    return True
