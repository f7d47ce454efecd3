"""Streams and clients that disconnect: everything begun is closed, and errors still reach their client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from fastapi import Request

from paceline.serve import events
from paceline.serve.asking import Delta
from paceline.serve.choices import Answer
from paceline.serve.errors import APIError
from paceline.serve.events import BEAT, Begun, EventStream, beating, frame, openai_frames, unless_gone
from serve.fakes import FakeService
from serve.front import CHAT, COMPLETIONS, RESPONSES, Front


class Source:
    """A stream that counts to `end` and records whether it was closed."""

    def __init__(self, end: int = 3, error: Exception | None = None) -> None:
        self.closed = False
        self.stream = self._stream(end, error)

    async def _stream(self, end: int, error: Exception | None) -> AsyncGenerator[int, None]:
        try:
            for at in range(end):
                yield at
            if error:
                raise error
        finally:
            self.closed = True


def request_of(*messages: str, left: asyncio.Event | None = None) -> Request:
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if waiting:
            return {"type": waiting.pop(0)}
        await (left or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


def test_frames():
    assert frame({"a": "ü\n"}) == b'data: {"a":"\xc3\xbc\\n"}\n\n'
    assert frame({"a": "\u2028\x85"}) == b'data: {"a":"\\u2028\\u0085"}\n\n'
    assert frame({}, "ping") == b"event: ping\ndata: {}\n\n"
    with pytest.raises(ValueError, match="not JSON compliant"):
        frame({"a": float("nan")})


def test_a_begun_stream_yields_all_its_events_and_is_closed():
    async def scene() -> None:
        source = Source()
        begun = await Begun.of(source.stream)
        assert [at async for at in begun] == [0, 1, 2]
        assert source.closed

    asyncio.run(scene())


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_shows_that_it_lives_until_it_begins(fails: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "_QUIET_S", 0.02)

    async def scene() -> None:
        opened, sent = asyncio.Event(), list[bytes]()

        async def late() -> AsyncGenerator[dict[str, Any], None]:
            await opened.wait()
            if fails:
                raise APIError(503, "it failed")
            yield {"at": 0}

        async def send(message: Any) -> None:
            sent.append(message.get("body"))
            if len(sent) == 4:
                opened.set()

        begun = await Begun.of(late())
        response = EventStream(beating(openai_frames(cast("Any", begun)), begun, {"at": None}), begun)
        await asyncio.wait_for(response({"type": "http", "asgi": {"spec_version": "2.4"}}, asyncio.Event().wait, send), 5)
        beats = sent.count(BEAT)
        assert beats >= 3
        assert sent[1 : 2 + beats] == [*[BEAT] * beats, frame({"at": None})]
        assert (b"it failed" if fails else b'{"at":0}') in sent[2 + beats]
        assert sent[3 + beats :] == [b"data: [DONE]\n\n", b""]

    asyncio.run(scene())


def test_a_stream_that_is_left_before_it_begins_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "_QUIET_S", 0.02)

    async def scene() -> None:
        closed = asyncio.Event()

        async def never() -> AsyncGenerator[int, None]:
            try:
                await asyncio.Event().wait()
                yield 0
            finally:
                closed.set()

        await (await Begun.of(never())).aclose()
        assert closed.is_set()

    asyncio.run(scene())


def test_a_stream_that_fails_before_its_first_event_is_closed():
    async def scene() -> None:
        source = Source(0, KeyError("x"))
        with pytest.raises(KeyError):
            await Begun.of(source.stream)
        assert source.closed
        with pytest.raises(APIError, match="stopped before"):
            await Begun.of(Source(0).stream)

    asyncio.run(scene())


@pytest.mark.parametrize("read", [False, True])
def test_a_stream_that_nobody_reads_is_closed(read: bool):
    """Also if its frames were never begun: closing those would not close the source behind them."""

    async def scene() -> None:
        source = Source()
        begun = await Begun.of(source.stream)

        async def chunks() -> AsyncGenerator[dict[str, Any], None]:
            async for at in begun:
                yield {"at": at}

        response = EventStream(openai_frames(chunks()), begun)
        left = asyncio.Event()
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if not read or len(sent) == 2:
                left.set()
                await asyncio.Event().wait()

        await asyncio.wait_for(response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send), 5)
        assert source.closed
        assert len(sent) == 1 + read

    asyncio.run(scene())


def test_a_client_that_is_gone_does_not_stop_everybody_else():
    """Sending to it never waits, so what is left of its answer must not be written in one turn of the event loop."""

    async def scene() -> None:
        begun, sent, left = await Begun.of(Source().stream), 0, asyncio.Event()

        async def chunks() -> AsyncGenerator[dict[str, Any], None]:
            for at in range(10_000):
                yield {"at": at}

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal sent
            sent += 1
            if sent == 5:
                left.set()

        response = EventStream(openai_frames(chunks()), begun)
        await asyncio.wait_for(response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send), 5)
        assert sent < 100

    asyncio.run(scene())


def test_work_is_cancelled_and_awaited_when_the_client_leaves():
    async def scene() -> None:
        left, log = asyncio.Event(), []

        async def work() -> None:
            try:
                left.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                log.append("cleaned up")

        with pytest.raises(APIError) as error:
            await unless_gone(request_of("http.request", left=left), work())
        assert error.value.status == 499
        assert log == ["cleaned up"]

    asyncio.run(scene())


def test_work_that_ends_before_the_client_leaves_returns_its_result():
    async def scene() -> None:
        async def answer() -> int:
            return 5

        async def fails() -> int:
            raise APIError(400, "no")

        assert await unless_gone(request_of(), answer()) == 5
        with pytest.raises(APIError, match="no"):
            await unless_gone(request_of(), fails())
        assert len(asyncio.all_tasks()) == 1, "the task that waits for the client has ended"

    asyncio.run(scene())


def test_work_ends_with_its_handler():
    async def scene() -> None:
        began, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            try:
                began.set()
                await asyncio.Event().wait()
            finally:
                ended.set()

        handler = asyncio.create_task(unless_gone(request_of(), work()))
        await began.wait()
        handler.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handler
        assert ended.is_set()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("error", "body"),
    [
        (APIError(503, "the engine failed"), b'"the engine failed"'),
        (ZeroDivisionError("secret"), b'"the server failed to answer"'),
    ],
)
def test_an_error_in_a_stream_is_its_last_event(error: Exception, body: bytes, caplog: pytest.LogCaptureFixture):
    async def scene() -> list[bytes]:
        async def chunks() -> AsyncGenerator[dict[str, Any], None]:
            yield {"at": 1}
            raise error

        return [one async for one in openai_frames(chunks())]

    first, told, done = asyncio.run(scene())
    assert first == b'data: {"at":1}\n\n'
    assert body in told
    assert b"secret" not in told
    assert done == b"data: [DONE]\n\n"
    assert bool(caplog.records) == isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize(
    ("chunk", "apart"),
    [
        ({"choices": [{"text": "a", "logprobs": {"tokens": ["a"]}}]}, False),
        ({"choices": [{"text": "a", "logprobs": None, "prompt_logprobs": [None, {"1": -0.5}]}]}, True),
        ({"choices": [{"text": "a", "logprobs": {"tokens": ["a"] * 65}}]}, True),
        ({"choices": [], "prompt_logprobs": [None, {"1": -0.5}]}, True),
        ({"id": "no choices"}, False),
    ],
)
def test_chunks_with_many_log_probabilities_are_serialised_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, chunk: dict[str, Any], apart: bool
) -> None:
    """Meanwhile the streams of other requests continue."""
    wrote, written = [], events.pieces

    def watched(value: Any) -> Any:
        wrote.append(threading.current_thread())
        return written(value)

    async def chunks() -> AsyncGenerator[dict[str, Any], None]:
        yield chunk

    async def frames() -> list[bytes]:
        return [one async for one in openai_frames(chunks())]

    monkeypatch.setattr(events, "pieces", watched)
    assert asyncio.run(frames()) == [frame(chunk), b"data: [DONE]\n\n"]
    assert [one is not threading.main_thread() for one in wrote] == [True] * apart


@pytest.mark.parametrize(
    ("front", "wishes"),
    [
        (CHAT, {"logprobs": True, "prompt_logprobs": 1}),
        (COMPLETIONS, {"logprobs": 1, "prompt_logprobs": 1}),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}),
    ],
)
def test_a_stream_keeps_no_log_probabilities_that_it_has_told(
    monkeypatch: pytest.MonkeyPatch, front: Front, wishes: dict[str, Any]
) -> None:
    answers: list[Answer] = []
    add = Answer.add

    def noted(answer: Answer, delta: Delta) -> None:
        answers.append(answer)
        add(answer, delta)

    monkeypatch.setattr(Answer, "add", noted)
    answer = front.client(FakeService()).post(front.path, json={**front.body, **wishes, "stream": True})
    assert '"logprob' in answer.text
    assert answers[0].tokens
    assert not answers[0].logprobs
    assert answers[0].prompt_logprobs is None
