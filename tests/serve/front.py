"""Routes over a service, a client for them, and clients that disconnect, with their effect on the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from paceline.serve.app import application
from paceline.serve.asking import Ask, Service
from paceline.serve.routes import chat, completions, responses
from paceline.serve.settings import Settings
from serve.fakes import FakeService

Router = Callable[[Service, Settings], APIRouter]
HELLO = [{"role": "user", "content": "hi"}]


def app_of(service: Service, *routers: Router, **settings: Any) -> FastAPI:
    return application(router(service, Settings(**settings)) for router in routers)


def client_of(service: Service, *routers: Router, **settings: Any) -> TestClient:
    return TestClient(app_of(service, *routers, **settings))


def refusal(client: TestClient, path: str, body: Any) -> tuple[int, str | None, str]:
    """Status, param and message of an answer that must be an error in OpenAI's form."""
    # Python's own writer, since a client may send escapes that the test client would refuse to write
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return answer.status_code, error["param"], error["message"]


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream in OpenAI's form, which must be well formed and end with [DONE]."""
    assert text.endswith("\n\n")
    frames = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames), text
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def streamed(client: TestClient, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events(answer.text)


def named_events(answer: Any) -> list[dict[str, Any]]:
    """The events of a stream whose events have their type as their name."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for frame in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def leave(app: FastAPI, path: str, body: Mapping[str, Any], after: asyncio.Event) -> list[dict[str, Any]]:
    """Send a request and disconnect once `after` is set. Returns what the application sent."""
    data, sent = json.dumps(body).encode(), []
    incoming = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop()
        await after.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await asyncio.wait_for(app(scope, receive, send), 5)
    return sent


def left_at_work(app_of: Callable[[FakeService], FastAPI], path: str, body: Mapping[str, Any]) -> int:
    """Disconnect once the engine answers. Returns how many submissions ended early, all closed before the app returned."""

    async def scene() -> int:
        at_work = asyncio.Event()

        async def hold() -> None:
            at_work.set()
            await asyncio.Event().wait()

        service = FakeService(hold=hold, context_length=4096)
        await leave(app_of(service), path, body, at_work)
        assert service.closed.is_set()
        return service.left_early

    return asyncio.run(scene())


@dataclass(frozen=True)
class Front:
    """One route in OpenAI's form. body: the smallest valid request; a test's fields are added to it."""

    router: Router
    path: str
    body: Mapping[str, Any]

    def app(self, service: Service) -> FastAPI:
        return app_of(service, self.router)

    def client(self, service: Service, **settings: Any) -> TestClient:
        return client_of(service, self.router, **settings)

    def post(self, service: Service, **wishes: Any) -> dict[str, Any]:
        answer = self.client(service).post(self.path, json={**self.body, **wishes})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def asked(self, **wishes: Any) -> Ask:
        """The first choice that reaches the engine."""
        service = FakeService()
        self.post(service, **wishes)
        return service.asked[0][0]

    def stream(self, service: Service, **wishes: Any) -> list[dict[str, Any]]:
        return streamed(self.client(service), self.path, {**self.body, **wishes})

    def refused(self, **wishes: Any) -> tuple[int, str | None, str]:
        service = FakeService()
        told = refusal(self.client(service), self.path, {**self.body, **wishes})
        assert not service.asked, "the engine got a request that was refused"
        return told

    def left_at_work(self, **wishes: Any) -> int:
        return left_at_work(self.app, self.path, {**self.body, **wishes})


COMPLETIONS = Front(completions.router, "/v1/completions", {"prompt": "ab"})
CHAT = Front(chat.router, "/v1/chat/completions", {"messages": HELLO})
RESPONSES = Front(responses.router, "/v1/responses", {"input": "hi"})
