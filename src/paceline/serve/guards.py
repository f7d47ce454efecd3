"""Guards: checks of a request before a route sees it. Plain ASGI middleware, which leaves streams and disconnects as they are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.bodies import flaw
from paceline.serve.errors import APIError, invalid
from paceline.serve.keys import Keys, shown_key
from paceline.serve.recording import Observer, Recorded, path_of, record
from paceline.serve.refusals import Caught, failed
from paceline.serve.settings import Settings
from paceline.serve.turns import has_room

OPEN_PATHS = frozenset({"/", "/docs", "/health", "/favicon.ico"})
OPEN_FOLDER = "/page/"
"""The pages must load before a user can enter a key; this folder has only the pages' own files."""
_MOST_HEADERS = 100
_QUOTED_CHARS = 100
_ASIDE_BYTES = 1 << 16
"""Bodies from this size on are checked in a thread, and count towards `Room` until they are answered. All smaller ones that may
be in flight need little memory together."""
_BODIES_AT_ONCE = 16
_LONGEST_LENGTH = 12
"""Most digits of a Content-Length; a longer one is refused without parsing it."""


def guarded(app: FastAPI, settings: Settings, observer: Observer | None = None) -> ASGIApp:
    """The application behind all guards. observer: called with the status of every response."""
    app.add_exception_handler(Exception, failed)
    inner: ASGIApp = Caught(Heads(Locked(Bodies(app, settings), settings), settings))
    if settings.cors_origins:
        inner = CORSMiddleware(
            inner,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            # browsers ask for this when a public page calls a server in a private network
            allow_private_network=True,
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return Recorded(inner, observer)


class Heads:
    """Checks the head of a request: its size, Host and Origin."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._max_bytes, self._hosts = app, settings.max_header_bytes, settings.hosts
        # without API keys any page in a browser could call this server; with keys only pages that have one can
        self._origins = None if settings.keys or "*" in settings.cors_origins else frozenset(settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if len(headers) > _MOST_HEADERS or sum(len(name) + len(value) + 4 for name, value in headers) + target > self._max_bytes:
            raise APIError(431, f"the head of the request is larger than {self._max_bytes} bytes or {_MOST_HEADERS} headers")
        host = _only(headers, b"host").lower()
        # browsers always send Host, health checks in HTTP/1.0 do not
        named = host or any(name == b"host" for name, _ in headers)
        if self._hosts is not None and named and _name(host) not in self._hosts:
            raise APIError(403, f"the host '{_quoted(host)}' is not served here: --allowed-host adds it", code="host_not_allowed")
        origin = _only(headers, b"origin").lower()
        if origin and self._origins is not None and origin not in self._origins and origin.partition("://")[2] != host:
            raise APIError(403, f"pages of '{_quoted(origin)}' may not call: --cors-origin adds them", code="origin_not_allowed")


class Locked:
    """Checks the API key on every route except the pages' files and /health."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._keys = app, Keys(settings.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys and scope["type"] == "http" and not _open(scope):
            place = self._keys.which(shown_key(scope["headers"]))
            if place is None:
                raise APIError(401, "the API key is missing or wrong", code="invalid_api_key")
            record().key = place
        await self._app(scope, receive, send)


def _open(scope: Scope) -> bool:
    path = path_of(scope)
    return scope["method"] in ("GET", "HEAD") and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER))


class Room:
    """Bounds the bytes of large bodies, counted by API key. As in the queue, one key must not use all of it: beyond the bound, up
    to twice as much, bodies of keys that hold less than their share are still accepted. Small bodies are not counted."""

    def __init__(self, most: int) -> None:
        self._most, self.taken = most, Counter[int | None]()

    @contextmanager
    def entered(self) -> Iterator[Callable[[int], None]]:
        """While one body is held. Yields a function to call with its size so far, which raises APIError if there is no room."""
        key, own = record().key, 0

        def grown(size: int) -> None:
            nonlocal own
            if size < _ASIDE_BYTES:
                return
            total = self.taken.total() + size - own
            if not has_room(key, self.taken, total, self._most):
                raise APIError(503, "too many large requests at once", code="overloaded", retry_after_s=1)
            self.taken[key] += size - own
            own = size

        try:
            yield grown
        finally:
            self.taken[key] -= own
            if not self.taken[key]:
                # `has_room` divides the bound among the keys that hold something
                del self.taken[key]


class Bodies:
    """Reads bodies whole, with limits on size, time and the sum over all requests, and checks them before they are parsed.

    arriving, kept: bytes of bodies that are being read, and of bodies whose response has not ended, which stay in memory until
    then, raw and parsed.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        most = _BODIES_AT_ONCE * settings.max_body_bytes
        self.arriving, self.kept = Room(most), Room(most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = _only(scope["headers"], b"content-length")
        if length.isdecimal() and (len(length) > _LONGEST_LENGTH or int(length) > self._settings.max_body_bytes):
            raise self._too_large()
        with self.arriving.entered() as grown:
            body = await self._read(receive, grown)
        if body is None:
            return
        with self.kept.entered() as grown:
            grown(len(body))
            if found := await self._flaw(body):
                raise invalid(found)
            if self._settings.log_prompts:
                record().body = body
            pending = [body]
            del body

            async def replayed() -> Message:
                return {"type": "http.request", "body": pending.pop(), "more_body": False} if pending else await receive()

            await self._app(scope, replayed, send)

    def _too_large(self) -> APIError:
        return APIError(413, f"the body is larger than {self._settings.max_body_bytes} bytes", code="body_too_large")

    async def _flaw(self, body: bytes) -> str | None:
        depth = self._settings.max_json_depth
        return flaw(body, depth) if len(body) < _ASIDE_BYTES else await asyncio.to_thread(flaw, body, depth)

    async def _read(self, receive: Receive, grown: Callable[[int], None]) -> bytes | None:
        """The body; None if the client disconnected. grown: called with the bytes received so far."""
        parts, size = list[bytes](), 0
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part: bytes = message.get("body", b"")
                    size += len(part)
                    parts.append(part)
                    if size > self._settings.max_body_bytes:
                        raise self._too_large()
                    grown(size)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise APIError(408, f"the body did not arrive within {self._settings.body_timeout_s:g} s") from None


def _only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """The value of a header; empty if it is missing or repeated."""
    values = [value for key, value in headers if key == name]
    return values[0].decode("latin-1").strip() if len(values) == 1 else ""


def _name(host: str) -> str:
    """A Host header without its port, and without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _quoted(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}..."
