"""Access log: one line per request with sizes and times, never with keys or headers, nor texts unless they may be logged."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Observer = Callable[[int], None]
"""Called with the status of every response."""

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_QUIET = ("/health", "/metrics")
"""Polled every few seconds by monitoring; logged at debug level when they succeed."""
_UNROUTED_CHARS = 100
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""They keep a browser from doing more with a response than show it; a route may override them."""
_log = logging.getLogger("paceline.serve.access")


@dataclass
class Record:
    """One request. key: index of its API key. choices: those the engine worked on. steps: their decoding steps. ttft_s: from the
    beginning of the request to its first token. reasons: why its choices ended. body: only if it may be logged."""

    id: str = ""
    begun_s: float = field(default_factory=perf_counter)
    status: int | None = None
    key: int | None = None
    choices: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    ttft_s: float | None = None
    reasons: list[str] = field(default_factory=list)
    body: bytes | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of its line in the log."""
        entry: dict[str, Any] = {"id": self.id, "status": self.status, "duration_s": round(perf_counter() - self.begun_s, 6)}
        if self.key is not None:
            entry["key"] = self.key
        if self.choices:
            entry |= {"choices": self.choices, "prompt_tokens": self.prompt_tokens, "tokens": self.tokens}
            entry["finish"] = ",".join(sorted(set(self.reasons)))
        if self.ttft_s is not None:
            entry["ttft_s"] = round(self.ttft_s, 6)
        if self.steps:
            entry["tau"] = round(self.tokens / self.steps, 3)
        if self.body:
            entry["body"] = self.body.decode(errors="replace")
        return entry


_current: ContextVar[Record] = ContextVar("record")


def record() -> Record:
    """The record of the current request; outside of a request a new one, which is discarded."""
    return _current.get(None) or Record()


def path_of(scope: Scope) -> str:
    """The path as routes name it, without a proxy's prefix (root_path)."""
    return scope["path"].removeprefix(scope.get("root_path", ""))


class Recorded:
    """Outermost middleware: gives each request an id, sets the common response headers, and writes the access log."""

    def __init__(self, app: ASGIApp, observer: Observer | None) -> None:
        self._app, self._observer = app, observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        wanted = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        one = Record(wanted if _SANE_ID.fullmatch(wanted) else f"req_{secrets.token_hex(12)}")
        scope.setdefault("state", {})["request_id"] = one.id
        token = _current.set(one)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                one.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = headers["Request-Id"] = one.id  # the names OpenAI's and Anthropic's clients read
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            _current.reset(token)
            self._tell(scope, one)

    def _tell(self, scope: Scope, one: Record) -> None:
        if one.status is not None and self._observer is not None:
            self._observer(one.status)
        route = getattr(scope.get("route"), "path", None) or path_of(scope)[:_UNROUTED_CHARS]
        level = logging.DEBUG if route in _QUIET and one.status == 200 else logging.INFO
        _log.log(level, "%s %s", scope["method"][:16], route, extra={"fields": one.fields()})
