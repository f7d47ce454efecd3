"""Client: sends one request to a server and records when each chunk of its answer arrives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from itertools import pairwise
from math import isfinite
from time import perf_counter
from typing import Any

import httpx2

from paceline.bench.load.chunks import BadChunk, parsed, said
from paceline.bench.load.outcome import REFUSALS, Outcome

_LARGEST_ERROR_BYTES = 1 << 16
_WAIT_S = 1.0
"""Wait before a refused request is sent again, if the server does not say how long."""
_READ_OUT_S = 0.05
"""Longest wait for a stream to close after its last event; it delays the next request."""


def connected(url: str, api_key: str | None, timeout_s: float) -> httpx2.AsyncClient:
    """An HTTP client that opens as many connections as there are requests in flight, and uses no proxy."""
    return httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=timeout_s,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        trust_env=False,
    )


class Client:
    """Streams answers from one path. retry: a request refused because the server is full is sent again, within its timeout."""

    def __init__(self, http: httpx2.AsyncClient, path: str, timeout_s: float, retry: bool = False) -> None:
        self._http, self._path, self._timeout_s, self._retry = http, path, timeout_s, retry

    async def ask(self, body: Mapping[str, Any], index: int, due: float, began: float) -> Outcome:
        """Send a request and read its answer. due, began: when it is due and when the run began, on perf_counter's clock. Errors
        of servers and networks are returned, not raised; ends within the timeout."""
        sent = perf_counter()
        about: dict[str, Any] = {"index": index, "due_s": due - began, "lag_s": sent - due}
        failed: dict[str, Any] = {}
        refusals = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    async with self._http.stream("POST", self._path, json=body) as response:
                        if response.status_code == 200:
                            return await _read(response, due, {**about, "refusals": refusals})
                        refusals += response.status_code in REFUSALS
                        failed = {"error": str(response.status_code), "message": await _message(response)}
                        wait_s = _wait_s(response)
                    if not self._retry or response.status_code not in REFUSALS:
                        break
                    await asyncio.sleep(wait_s)
        except (TimeoutError, httpx2.TimeoutException):
            failed = {"error": "timeout", "message": f"no whole answer within {self._timeout_s:g} s"}
        except httpx2.SSEError as error:
            failed = {"error": "not a stream", "message": str(error)}
        except BadChunk as error:
            failed = {"error": "error in the stream", "message": str(error)}
        except UnicodeEncodeError:
            failed = {"error": "unsendable", "message": "its text is not Unicode"}
        except httpx2.RequestError as error:
            failed = {"error": "connection", "message": str(error) or type(error).__name__}
        return Outcome(**about, **failed, refusals=refusals, ended_s=perf_counter() - due)


async def _read(response: httpx2.Response, due: float, about: Mapping[str, Any]) -> Outcome:
    times_s: list[float] = []
    texts: list[str] = []
    whole = False
    counts: dict[str, Any] = {}
    events = aiter(httpx2.EventSource(response))
    async for event in events:
        now_s = perf_counter() - due
        if event.data == "[DONE]":
            whole = True
            break
        if not event.data:
            continue
        chunk = parsed(event.data)
        whole = whole or chunk.finished
        if chunk.carries:
            times_s.append(now_s)
            texts.append(chunk.text)
        for name in ("prompt_tokens", "tokens", "speculation"):
            # the last value counts: some servers send usage with every chunk
            value = getattr(chunk, name)
            if value is not None and value != {}:
                counts[name] = value
    ended_s = perf_counter() - due
    await _read_out(events)
    if not whole:
        return Outcome(**about, error="cut off", message="the stream ended before the answer did", ended_s=ended_s)
    return Outcome(
        **about,
        first_s=times_s[0] if times_s else None,
        last_s=times_s[-1] if times_s else None,
        ended_s=ended_s,
        gaps_s=tuple(later - earlier for earlier, later in pairwise(times_s)),
        chunks=len(times_s),
        text="".join(texts),
        **counts,
    )


async def _read_out(events: AsyncIterator[Any]) -> None:
    """Read the (empty) rest of a stream, without which its connection could not be reused."""
    with suppress(TimeoutError, httpx2.RequestError, httpx2.SSEError):
        async with asyncio.timeout(_READ_OUT_S):
            async for _ in events:
                pass


async def _message(response: httpx2.Response) -> str:
    """The server's message in an error response."""
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > _LARGEST_ERROR_BYTES:
            break
    try:
        return said(json.loads(body))
    except (ValueError, RecursionError):
        return ""


def _wait_s(response: httpx2.Response) -> float:
    try:
        wait_s = float(response.headers.get("retry-after", ""))
    except ValueError:
        return _WAIT_S
    return wait_s if isfinite(wait_s) and wait_s >= 0 else _WAIT_S
