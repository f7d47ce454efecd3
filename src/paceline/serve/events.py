"""Server-sent events, and cancellation of work when the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from paceline.serve.errors import APIError
from paceline.serve.written import dumped, pieces

T = TypeVar("T")
_LINE_ENDS = [(chr(at), f"\\u{at:04x}") for at in (0x85, 0x2028, 0x2029)]
"""JSON does not escape them, and some line readers treat them as line ends."""
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_QUIET_S = 15.0
"""Longest time in which nothing is sent: many proxies close a silent connection after 60 s, some sooner."""
BEAT = b":\n"
"""A comment as keep-alive. No blank line ends it: some clients parse everything before a blank line as an event with data
(openai/openai-go issue 556)."""
_AT_ONCE = 16
"""Events that are sent without giving others a turn: a few milliseconds' work at most, and few more turns of the event loop."""
_MANY = 64
"""A chunk with log-probabilities of more tokens than this has those of a prompt."""
_logger = logging.getLogger(__name__)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. If the client disconnects first, `work` is cancelled and awaited, and APIError (499) is raised.

    For handlers that have read the body. The work runs in a separate task.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise APIError(499, "the client disconnected before the answer was whole", code="client_disconnected")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Begun(Generic[T]):
    """The items of an asynchronous generator, the first one already awaited, so that an error before it can still set the HTTP
    status. The wait is bounded, since proxies and load balancers time out without a first byte."""

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._source = source
        self._first: asyncio.Task[T] | None = asyncio.ensure_future(_first(source))

    @classmethod
    async def of(cls, source: AsyncGenerator[T, None]) -> Begun[T]:
        """Raises what the generator raises within that time, after closing it."""
        begun = cls(source)
        try:
            if await begun.came() and begun._first is not None and (error := begun._first.exception()):
                raise error
        except BaseException:
            await begun.aclose()
            raise
        return begun

    async def came(self) -> bool:
        """Wait for the first item or an error, at most `_QUIET_S`; whether one has come."""
        return self._first is None or bool((await asyncio.wait({self._first}, timeout=_QUIET_S))[0])

    def __aiter__(self) -> Begun[T]:
        return self

    async def __anext__(self) -> T:
        if self._first is None:
            return await anext(self._source)
        first, self._first = self._first, None
        return await first

    async def aclose(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._source.aclose()


async def _first(source: AsyncGenerator[T, None]) -> T:
    try:
        return await anext(source)
    except StopAsyncIteration:
        raise APIError(503, "the engine stopped before it had answered", code="aborted", retry_after_s=1) from None


class EventStream(StreamingResponse):
    """Server-sent events. However the response ends, `frames` and then `source` are closed before it returns."""

    def __init__(self, frames: AsyncGenerator[bytes, None], source: Begun[Any]) -> None:
        turns = _in_turns(frames)
        super().__init__(turns, media_type="text/event-stream", headers=_HEADERS)
        self._closing = (turns, frames, source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # closing continues even if the task that awaits it is cancelled again
            await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        for one in self._closing:
            await one.aclose()


async def _in_turns(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The frames, with a turn for everything else after a few: sending to a client that is gone never waits, and all that is left
    of its answer, maybe seconds of work, would be written in one go."""
    count = 0
    async for one in frames:
        yield one
        count += 1
        if count % _AT_ONCE == 0:
            await asyncio.sleep(0)


async def beating(
    frames: AsyncGenerator[bytes, None], source: Begun[Any], nothing: Mapping[str, Any]
) -> AsyncGenerator[bytes, None]:
    """The frames, preceded by keep-alive comments while the first item of `source` is awaited. nothing: an event without content,
    sent after the comments."""
    async with aclosing(frames):
        waited = False
        while not await source.came():
            waited = True
            yield BEAT
        if waited:
            # some readers expect "data:" at the start of a block and skip a block that begins with a comment: let them skip this
            yield frame(nothing)
        async for one in frames:
            yield one


def frame(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """One server-sent event. event: its name, where the API names its events."""
    return _framed(dumped(data), event)


def _framed(text: str, event: str | None = None) -> bytes:
    named = f"event: {event}\n" if event else ""
    for end, written in _LINE_ENDS:
        text = text.replace(end, written)
    return f"{named}data: {text}\n\n".encode()


async def openai_frames(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    """Chunks as events, then [DONE]. An error in between becomes an event, since the status is already sent."""
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                if _tells_prompt(chunk):
                    # serializing an entry per prompt token takes seconds, which must not block other streams
                    yield await asyncio.to_thread(lambda whole=chunk: _framed("".join(pieces(whole))))
                else:
                    yield frame(chunk)
        except Exception as error:
            yield frame(api_error(error).body)
        yield b"data: [DONE]\n\n"


def _tells_prompt(chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk has log-probabilities of a prompt."""
    held = [chunk, *chunk.get("choices", ())]
    return any(one.get("prompt_logprobs") or len((one.get("logprobs") or {}).get("tokens", ())) > _MANY for one in held)


def api_error(error: Exception) -> APIError:
    """The error as it is reported to the client; an unexpected one is logged and reported without details."""
    if isinstance(error, APIError):
        return error
    _logger.error("a stream failed", exc_info=error)
    return APIError(500, "the server failed to answer")
