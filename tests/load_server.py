"""A server that answers as each request specifies, with known delays, so that a load generator's results can be predicted."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

MODEL = "fake-model"


class FakeServer:
    """An ASGI application. A request's field "fake" specifies its answer:

    first_s, gap_s: delay of the first chunk, and between chunks. tokens, chunk: tokens in all, and per chunk. status, after:
    answer with this status, to the first `after` requests only. usage: report it. cut: close the stream without an end. tail:
    sent instead of the end. At most `slots` requests are answered at once; the others wait.

    in_flight, most_in_flight: requests being answered, now and at most. most_waiting: most requests waiting at any time.
    """

    def __init__(self, slots: int = 1000, tokenizer: bool = True, knows_usage: bool = True, context_tokens: int = 1024) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.clients: set[tuple[str, int]] = set()
        self.in_flight = self.most_in_flight = 0
        self._waiting = self.most_waiting = 0
        self._slots, self._tokenizer, self._knows_usage = asyncio.Semaphore(slots), tokenizer, knows_usage
        self._context_tokens = context_tokens

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        self.authorizations += [value.decode() for name, value in scope["headers"] if name == b"authorization"]
        self.clients.add(tuple(scope["client"]))
        path, content = scope["path"], await _body(receive)
        if path == "/v1/models":
            entry = {"id": MODEL, "object": "model", "max_model_len": self._context_tokens}
            await _json(send, 200, {"object": "list", "data": [entry]})
        elif path == "/v1/speculation" and self._tokenizer:
            await _json(send, 200, {"policy": "adaptive", "default": ["ngram"], "batch": 8, "drafters": [{"name": "ngram"}]})
        elif path == "/tokenize" and self._tokenizer:
            await _json(send, 200, {"tokens": list(range(len(content["prompt"].split()))), "count": 0})
        elif path in ("/v1/completions", "/v1/chat/completions"):
            await self._answer(content, path.startswith("/v1/chat"), send)
        else:
            await _json(send, 404, {"detail": "Not Found"})

    async def _answer(self, body: dict[str, Any], chat: bool, send: Any) -> None:
        self.bodies.append(body)
        fake = {"first_s": 0.0, "gap_s": 0.0, "tokens": 8, "chunk": 1, "usage": True, "cut": False, **body.get("fake", {})}
        if "stream_options" in body and not self._knows_usage:
            await _json(send, 400, {"error": {"message": "unknown field stream_options"}})
            return
        if "status" in fake and len(self.bodies) <= fake.get("after", 1 << 30):
            headers = [(b"retry-after", str(fake["retry_after"]).encode())] if "retry_after" in fake else []
            await _json(send, fake["status"], {"error": {"message": "as it was told"}}, headers)
            return
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)
        async with self._slots:
            self._waiting -= 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                await self._stream(body, fake, chat, send)
            finally:
                self.in_flight -= 1

    async def _stream(self, body: dict[str, Any], fake: dict[str, Any], chat: bool, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        if chat:
            await _event(send, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        tokens = min(fake["tokens"], body["max_tokens"])
        for start in range(0, tokens, fake["chunk"]):
            await asyncio.sleep(fake["gap_s"] if start else fake["first_s"])
            text = "word " * min(fake["chunk"], tokens - start)
            if start == 0:
                await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
            await _event(send, {"choices": [{"index": 0, **({"delta": {"content": text}} if chat else {"text": text})}]})
        if fake["cut"]:
            await send({"type": "http.response.body", "body": b""})
            return
        if "tail" in fake:
            await send({"type": "http.response.body", "body": fake["tail"].encode()})
            return
        ended = {"choices": [{"index": 0, **({"delta": {}} if chat else {"text": ""}), "finish_reason": "length"}]}
        await _event(send, ended)
        if fake["usage"] and "stream_options" in body:
            usage = {
                "prompt_tokens": len((body.get("prompt") or body["messages"][0]["content"]).split()),
                "completion_tokens": tokens,
            }
            steps = -(-tokens // fake["chunk"])
            speculation = {"tau": tokens / steps, "num_spec_steps": steps}
            await _event(send, {"choices": [], "usage": usage, "metrics": {"speculative_decoding": speculation}})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _body(receive: Any) -> dict[str, Any]:
    content, more = b"", True
    while more:
        message = await receive()
        content += message.get("body", b"")
        more = message.get("more_body", False)
    return json.loads(content) if content else {}


async def _json(send: Any, status: int, content: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    kind = [(b"content-type", b"application/json"), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def _event(send: Any, content: Any) -> None:
    await send({"type": "http.response.body", "body": f"data: {json.dumps(content)}\n\n".encode(), "more_body": True})


@contextmanager
def serving(app: FakeServer) -> Iterator[str]:
    """The address of a running server, on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
