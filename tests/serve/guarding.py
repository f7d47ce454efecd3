"""A small application behind the guards, and functions that send it requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from paceline.serve import health
from paceline.serve.app import application
from paceline.serve.errors import APIError
from paceline.serve.guards import guarded
from paceline.serve.settings import Settings

KEY, OTHER = "sk-aaaaaaaaaaaa", "sk-bbbbbbbbbbbb"
LOCAL = "http://localhost"


def small_app() -> FastAPI:
    app = application([health.router(lambda: "ok")])

    @app.post("/v1/echo")
    async def echo(request: Request) -> Any:
        return await request.json()

    @app.post("/v1/messages")
    async def messages(request: Request) -> Any:
        return await request.json()

    @app.get("/v1/broken")
    async def broken() -> None:
        raise RuntimeError("a secret text")

    @app.get("/v1/refused")
    async def refused() -> None:
        raise APIError(503, "draining", retry_after_s=7)

    @app.get("/v1/stream")
    async def stream(breaks: bool = False) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"one "
            if breaks:
                raise RuntimeError("a secret text")
            yield b"two"

        return StreamingResponse(parts())

    return app


def client(**settings: Any) -> TestClient:
    return TestClient(guarded(small_app(), Settings(**settings)), LOCAL, raise_server_exceptions=False)


def sentence(answer: Any, status: int) -> str:
    """The message of a refusal in OpenAI's form."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    assert "Traceback" not in answer.text
    return error["message"]


class Sent:
    """A body that arrives in parts. bytes: how many were read."""

    def __init__(self, parts: Iterable[bytes], stalls: bool = False) -> None:
        self._parts, self._stalls, self.bytes = iter(parts), stalls, 0

    async def __call__(self) -> dict[str, Any]:
        part = next(self._parts, None)
        if part is None and self._stalls:
            await asyncio.Event().wait()
        self.bytes += len(part or b"")
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}


def asked(
    app: Any, received: Any, headers: dict[str, str] | None = None, path: str = "/v1/echo"
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of an application's answer to a raw request."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "headers": [(name.encode(), value.encode()) for name, value in ({"host": "localhost"} | (headers or {})).items()],
    }
    asyncio.run(asyncio.wait_for(app(scope, received, send), 10))
    start = sent[0]
    return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, json.loads(sent[1]["body"])
