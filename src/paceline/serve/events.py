"""Answers that arrive bit by bit, and clients that leave too soon: server-sent events, and an end to work that nobody reads."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from paceline.serve.errors import APIError

T = TypeVar("T")
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_logger = logging.getLogger(__name__)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled, and has ended, once the client disconnects; then APIError (499) is raised.

    For handlers that have read the body. The work runs in a task of its own.
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


class Closable(Protocol):
    def aclose(self) -> Awaitable[None]: ...


class Begun(Generic[T]):
    """What an asynchronous generator yields, the first item already awaited: before it, an error still has its HTTP status."""

    def __init__(self, first: T, source: AsyncGenerator[T, None]) -> None:
        self._first, self._source = [first], source

    @classmethod
    async def of(cls, source: AsyncGenerator[T, None]) -> Begun[T]:
        """Raises what the generator raises, which then is closed."""
        try:
            return cls(await anext(source), source)
        except StopAsyncIteration:
            raise APIError(503, "the engine stopped before it had answered", code="aborted", retry_after_s=1) from None
        except BaseException:
            await source.aclose()
            raise

    def __aiter__(self) -> Begun[T]:
        return self

    async def __anext__(self) -> T:
        return self._first.pop() if self._first else await anext(self._source)

    async def aclose(self) -> None:
        await self._source.aclose()


class EventStream(StreamingResponse):
    """Server-sent events. Whichever way the response ends, `frames` and then `source` are closed before it has."""

    def __init__(self, frames: AsyncGenerator[bytes, None], source: Closable) -> None:
        super().__init__(frames, media_type="text/event-stream", headers=_HEADERS)
        self._closing: tuple[Closable, ...] = (frames, source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # closing goes on even where whoever awaits it is cancelled once more
            await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        for one in self._closing:
            await one.aclose()


def frame(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """One server-sent event. event: its name, where the API names its events."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {text}\n\n".encode()


async def openai_frames(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    """Chunks as events, then [DONE]. What goes wrong in between is an event of its own, since the status is long sent."""
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield frame(chunk)
        except Exception as error:
            yield frame(told(error).body)
        yield b"data: [DONE]\n\n"


def told(error: Exception) -> APIError:
    """An error for the client; one that is none of ours is logged, and the client learns only that there was one."""
    if isinstance(error, APIError):
        return error
    _logger.error("a stream failed", exc_info=error)
    return APIError(500, "the server failed to answer")
