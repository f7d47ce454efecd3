"""Streams with a late first token send keep-alives that strict and simple readers both accept."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from paceline.serve import events
from paceline.serve.routes import chat, completions, messages, responses
from serve.fakes import FakeService
from serve.front import HELLO, Router, client_of


def paragraphs(monkeypatch: pytest.MonkeyPatch, router: Router, path: str, **body: Any) -> list[str]:
    """The paragraphs of a delayed stream, between blank lines."""
    monkeypatch.setattr(events, "_QUIET_S", 0.02)
    service = FakeService(yielded=1)
    # only before the first token
    service.hold = lambda: asyncio.sleep(0.2 if service.yielded == 1 else 0)
    text = client_of(service, router).post(path, json={**body, "stream": True}).text
    assert text.endswith("\n\n")
    return text.removesuffix("\n\n").split("\n\n")


def data(paragraph: str) -> Any:
    """Parses like OpenAI's client for Go, for which every blank line ends an event that has data."""
    read = "".join(line.removeprefix("data: ") for line in paragraph.split("\n") if line.startswith("data: "))
    return read if read == "[DONE]" else json.loads(read)


@pytest.mark.parametrize(
    ("router", "path", "body"),
    [
        (completions.router, "/v1/completions", {"prompt": "ab"}),
        (chat.router, "/v1/chat/completions", {"messages": HELLO}),
    ],
)
def test_openai_streams_send_comments_before_a_late_first_token(
    monkeypatch: pytest.MonkeyPatch, router: Router, path: str, body: dict[str, Any]
) -> None:
    told = paragraphs(monkeypatch, router, path, **body)
    assert told[0].startswith(":\n:\n")
    # readers that expect data at the start of a paragraph lose only an event without content
    choice = data(told[0])["choices"][0]
    assert (choice.get("text"), choice.get("delta")) in [("", None), (None, {})]
    assert all(one.startswith("data: ") for one in told[1:])
    choices = [data(one)["choices"][0] for one in told[:-1]]
    assert "".join(one.get("text") or one.get("delta", {}).get("content", "") for one in choices) == "hello world"
    assert data(told[-1]) == "[DONE]"


def test_messages_streams_send_pings_before_a_late_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    told = paragraphs(monkeypatch, messages.router, "/v1/messages", messages=HELLO, max_tokens=99)
    kinds = [data(one)["type"] for one in told]
    begun = kinds.index("content_block_start")
    assert begun > 3
    assert kinds[:begun] == ["message_start", *["ping"] * (begun - 1)]
    assert [one.split("\n")[0] for one in told] == [f"event: {kind}" for kind in kinds]


def test_responses_streams_send_comments_before_a_late_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    told = paragraphs(monkeypatch, responses.router, "/v1/responses", input="hi")
    kinds = [data(one)["type"] for one in told]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert told[2].startswith(":\n:\n")
    assert kinds[-1] == "response.completed"
