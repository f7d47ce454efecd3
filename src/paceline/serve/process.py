"""The engine's process from the server's side: started, sent orders, and restarted when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Protocol

from paceline.child import command, module_paths
from paceline.errors import PacelineError
from paceline.logprobs import TokenLogprobs
from paceline.serve.asking import Ask, Delta
from paceline.serve.errors import APIError, invalid
from paceline.serve.pipe import LONGEST_LINE_BYTES, Line, News, Order, Ready, Stats, untellable

_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits before a restart, by the number of failed runs in a row; a run that sent news after it was ready did not fail."""
_LEAVE_S = 5.0
"""Time for the process to exit after its input has ended, before it is killed."""
_SILENT_S = 300.0
"""Silence while asks are in flight after which, once a request has timed out, the engine counts as hung."""

log = logging.getLogger("paceline.serve")


class EngineError(PacelineError):
    """The engine cannot be started; the message is one sentence for the user."""


class Listener(Protocol):
    """Receives the deltas of one ask: called on the event loop, until the ending or the first failure. key: index of the
    request's API key."""

    @property
    def key(self) -> int | None: ...

    def brought(self, delta: Delta) -> None: ...

    def failed(self, error: APIError) -> None: ...


class EngineProcess:
    """One engine behind a pipe. settings: one line of JSON. heard: called with its reports. lost: called when it has ended.

    ready: its properties; None while it starts and cannot take asks.
    """

    def __init__(self, settings: bytes, heard: Callable[[Stats], None], lost: Callable[[], None]) -> None:
        self._settings, self._heard, self._lost = settings, heard, lost
        self._listeners: dict[int, Listener] = {}
        self._prompts: dict[int, list[TokenLogprobs | None]] = {}
        """By number, log-probabilities of a prompt, kept until its delta comes."""
        self._orders, self._news = Line(Order), Line(News)
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._numbers = 0
        self._owes_since_s = 0.0
        """When the engine last sent news, or the first ask after an idle time was sent."""
        self._closing = False
        self.ready: Ready | None = None

    async def start(self) -> Ready:
        """Start it and wait until it is ready. Raises EngineError."""
        self.ready = ready = await self._started()
        self._task = asyncio.create_task(self._kept_running())
        return ready

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def load(self) -> int:
        """Choices in flight or waiting."""
        return len(self._listeners)

    @property
    def held(self) -> Counter[int | None]:
        """The same, by index of the API key."""
        return Counter(listener.key for listener in self._listeners.values())

    def ask(self, ask: Ask, listener: Listener) -> int:
        """Send an ask; returns its number. Raises APIError: 400 if the answer would not fit the pipe, 503 without an engine."""
        if sentence := untellable(ask):
            raise invalid(sentence)
        if self.ready is None:
            raise APIError(503, "the engine is starting; try again in a moment", code="engine_starting", retry_after_s=1)
        self._numbers += 1
        if not self._listeners:
            self._owes_since_s = monotonic()
        self._listeners[self._numbers] = listener
        self._send(Order(self._numbers, ask))
        return self._numbers

    def end(self, number: int) -> None:
        """End the ask with a number; a no-op if it has ended."""
        self._prompts.pop(number, None)
        if self._listeners.pop(number, None) is not None:
            self._send(Order(number))

    def expire(self, number: int) -> None:
        """End the ask with a number; its ending is still delivered."""
        if number in self._listeners:
            self._send(Order(number, late=True))

    def given_up(self) -> bool:
        """Called when a request timed out without an answer: whether the engine has been silent for so long that it counts as
        hung. If so it is killed, and replaced."""
        silent = self.ready is not None and self._process is not None and monotonic() - self._owes_since_s > _SILENT_S
        if silent and self._process is not None:
            log.error("the engine has told nothing for %g s; it is ended", _SILENT_S)
            with suppress(ProcessLookupError):
                self._process.kill()
        return silent

    def _send(self, order: Order) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(self._orders.write(order))

    async def close(self) -> None:
        """End the process; asks still in flight fail."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._gone()
        self._fail_all("the server is shutting down", "shutting_down")

    async def _started(self) -> Ready:
        """Start the process and wait until it is ready. Raises EngineError."""
        try:
            await self._spawn()
        # out of memory, processes or files; RuntimeError: asyncio may need a thread to wait for the process
        except (OSError, RuntimeError) as error:
            raise EngineError(f"the engine's process cannot be started: {error}") from None
        news = await self._read()
        if news is not None and news.ready is not None:
            if news.stats is not None:
                self._heard(news.stats)
            return news.ready
        await self._gone()
        raise EngineError(news.failure if news is not None and news.failure else "the engine ended before it was ready")

    async def _spawn(self) -> None:
        # in a new session, so that Ctrl-C in the terminal reaches only the server
        self._process = await asyncio.create_subprocess_exec(
            *command("-m", "paceline.serve.worker"),
            env={**os.environ, **module_paths()},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE_BYTES,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self._settings + b"\n")

    async def _read(self) -> News | None:
        """The next line; None at the end."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except (ValueError, ConnectionError):
            return None
        try:
            return self._news.read(line) if line else None
        except ValueError:
            # half a line: the process died while writing
            return None

    async def _kept_running(self) -> None:
        """Deliver news; restart the engine whenever it ends."""
        failures = 0
        while True:
            spoke = await self._listened()
            self.ready = None
            self._fail_all("the engine failed and is being started again; send the request once more", "engine_failed")
            await self._gone()
            failures = 0 if spoke else failures + 1
            self._lost()
            wait_s = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
            log.error("the engine ended; it is started again in %g s", wait_s)
            await asyncio.sleep(wait_s)
            try:
                self.ready = await self._started()
                log.info("the engine is back")
            except EngineError as error:
                log.error("the engine cannot be started: %s", error)

    async def _listened(self) -> bool:
        """Deliver news until it ends; returns whether there was any."""
        if self.ready is None:
            return False
        spoke = False
        while (news := await self._read()) is not None and news.failure is None:
            spoke = True
            self._owes_since_s = monotonic()
            refused = {number: APIError(400, sentence) for number, sentence in news.refused.items()}
            for number, sentence in news.busy.items():
                refused[number] = APIError(503, sentence, code="overloaded", retry_after_s=1)
            for number, error in refused.items():
                if (listener := self._listeners.pop(number, None)) is not None:
                    listener.failed(error)
            for number, part in news.prompts.items():
                if number in self._listeners:
                    self._prompts.setdefault(number, []).extend(part)
            if news.prompts:
                # buffered lines are read without yielding to the event loop, and these take long to parse
                await asyncio.sleep(0)
            for number, delta in news.deltas.items():
                listener = self._listeners.get(number)
                if listener is not None:
                    if (entries := self._prompts.pop(number, None)) is not None:
                        delta = replace(delta, prompt_logprobs=tuple(entries))
                    if delta.ending is not None:
                        del self._listeners[number]
                    listener.brought(delta)
            if news.stats is not None:
                self._heard(news.stats)
        return spoke

    def _fail_all(self, sentence: str, code: str) -> None:
        listeners, self._listeners = self._listeners, {}
        self._prompts.clear()
        for listener in listeners.values():
            listener.failed(APIError(503, sentence, code=code, retry_after_s=1))

    async def _gone(self) -> None:
        """Make sure that the process has ended."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _LEAVE_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
