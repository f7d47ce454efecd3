"""Guards over real connections: clients that send slowly, give false lengths or never finish are not waited for."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from threading import Event

import pytest
from fastapi.responses import Response, StreamingResponse

from paceline.serve.guards import guarded
from paceline.serve.settings import Settings
from serve.guarding import small_app
from serve.wires import Wire


@pytest.fixture(scope="module")
def wire() -> Iterable[Wire]:
    with Wire(guarded(small_app(), Settings(body_timeout_s=0.4)), Settings(), patience_s=0.4) as one:
        yield one


def test_a_large_head_is_refused_over_a_connection(wire: Wire) -> None:
    for head in (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", b"GET /" + b"a" * 200_000):
        answer = wire.told(head)
        assert b" 431 " in answer.split(b"\r\n")[0]
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_a_malformed_request_head_is_refused(wire: Wire, head: bytes) -> None:
    answer = wire.told(head)
    assert answer.split(b" ")[1] == b"400"
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "this is not a request in HTTP/1.1"


def test_a_health_check_without_a_host_passes(wire: Wire) -> None:
    assert wire.told(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert b"403" in wire.told(b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n").partition(b"\r\n")[0]


def test_a_head_that_drips_is_not_waited_for(wire: Wire) -> None:
    for begun, drip in ((b"GET / HT", b"T"), (b"", b"G"), (b"", b"")):
        assert wire.told(begun, drip=drip) == b""
        assert wire.closed


def test_a_head_that_drips_behind_an_answer_is_not_waited_for(wire: Wire) -> None:
    answer = wire.told(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /x", drip=b"x")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1
    assert wire.closed


def test_a_body_that_drips_is_not_waited_for(wire: Wire) -> None:
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    assert wire.told(head, drip=b" ").startswith(b"HTTP/1.1 408")
    assert wire.closed


def test_a_body_that_is_refused_and_never_ends_is_not_waited_for(wire: Wire) -> None:
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (64 << 20)
    assert wire.told(head, drip=b" ").startswith(b"HTTP/1.1 413")
    assert wire.closed


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused_over_a_connection_and_not_held(wire: Wire, chunked: bool) -> None:
    kind = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (64 << 20)
    part = b"x" * 65536
    parts = [b"10000\r\n" + part + b"\r\n" if chunked else part] * 1024
    before = wire.peak_bytes()
    answer = wire.told(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n" + kind + b"\r\n\r\n", *parts)
    assert answer.startswith(b"HTTP/1.1 413")
    assert wire.peak_bytes() - before < 24 << 20


def test_a_large_body_announced_with_expect_100_continue_is_refused_at_once(wire: Wire) -> None:
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (64 << 20)
    assert wire.told(head).startswith(b"HTTP/1.1 413")


def test_a_stream_that_breaks_is_cut_and_not_ended(wire: Wire) -> None:
    ask = b"GET /v1/stream%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert wire.told(ask % b"").endswith(b"0\r\n\r\n")
    broken = wire.told(ask % b"?breaks=1")
    assert b"one" in broken
    assert not broken.endswith(b"0\r\n\r\n")


def test_a_keep_alive_connection_stays_open_between_requests(wire: Wire) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert wire.told(request, pause_s=0.6, then=request).count(b"HTTP/1.1 200") == 2
    assert not wire.closed


@pytest.mark.parametrize("reads", [False, True])
def test_an_answer_that_nobody_reads_is_given_up(reads: bool) -> None:
    """An answer that is read goes on, however slowly."""
    app, ended = small_app(), Event()

    @app.get("/v1/endless")
    async def endless() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while True:
                    await asyncio.sleep(0)
                    yield b"a" * 100_000
            finally:
                ended.set()

        return StreamingResponse(parts())

    with Wire(guarded(app, Settings()), Settings(), patience_s=0.4) as wire:
        with socket.create_connection(("127.0.0.1", wire.port), 5) as line:
            line.sendall(b"GET /v1/endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until = time.monotonic() + 1.5
            while time.monotonic() < until and not ended.is_set():
                time.sleep(0.05)
                if reads:
                    line.recv(1 << 20)
            assert ended.is_set() is not reads
        assert ended.wait(5), "the answer also ends once the client hangs up"


def test_a_large_whole_answer_may_be_read_for_longer_than_the_patience() -> None:
    app, size = small_app(), 32 << 20

    @app.get("/v1/large")
    async def large() -> Response:
        return Response(b"a" * size)

    with Wire(guarded(app, Settings()), Settings(), patience_s=0.3) as wire, socket.socket() as line:
        # so that the system buffers little of it
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        line.settimeout(5)
        line.connect(("127.0.0.1", wire.port))
        line.sendall(b"GET /v1/large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        began, read = time.monotonic(), 0
        while read < size and (part := line.recv(1 << 18)):
            read += len(part)
            # 1.5 seconds for the whole answer
            time.sleep(max(began + 1.5 * read / size - time.monotonic(), 0))
        assert read >= size


def test_an_offer_to_upgrade_is_answered_over_http_1_1(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    with caplog.at_level(logging.WARNING):
        assert wire.told(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + offer + b"\r\n").startswith(b"HTTP/1.1 200")
    assert not caplog.records


def test_a_new_connection_takes_the_place_of_the_one_that_was_idle_longest() -> None:
    def is_answered(line: socket.socket) -> bool:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}") and (read := line.recv(1 << 16)):
            answer += read
        return answer.startswith(b"HTTP/1.1 200")

    with Wire(guarded(small_app(), Settings()), Settings(), patience_s=5.0, most_connections=4) as wire, ExitStack() as stack:
        lines = list[socket.socket]()
        for _ in range(8):
            lines.append(stack.enter_context(socket.create_connection(("127.0.0.1", wire.port), 5)))
            assert is_answered(lines[-1])
        assert [line.recv(1) for line in lines[:4]] == [b""] * 4, "the idle ones were closed"
        assert all(is_answered(line) for line in lines[4:])


@pytest.mark.parametrize(("path", "kind"), [("/v1/echo", "api_error"), ("/v1/messages", "overloaded_error")])
def test_a_request_beyond_the_connection_limit_gets_503(path: str, kind: str) -> None:
    ask = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n".encode()
    with Wire(guarded(small_app(), Settings()), Settings(), patience_s=5.0, most_connections=2) as wire:
        with ExitStack() as stack:
            lines = [stack.enter_context(socket.create_connection(("127.0.0.1", wire.port), 5)) for _ in range(2)]
            for line in lines:
                line.sendall(ask + b"{")
            head, _, body = wire.told(ask, b"{}").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in head.lower()
            assert wire.closed
            assert json.loads(body)["error"]["type"] == kind
            for line in lines:
                line.sendall(b"}")
                assert line.recv(1 << 16).startswith(b"HTTP/1.1 200"), "accepted requests are answered"
        assert wire.told(ask, b"{}").startswith(b"HTTP/1.1 200")
