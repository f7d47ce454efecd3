"""Bad bodies: each is refused in one sentence, and nothing is read or parsed that need not be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from paceline.serve.bodies import flaw
from paceline.serve.errors import APIError
from paceline.serve.guards import Bodies, guarded
from paceline.serve.settings import Settings
from serve.guarding import Sent, asked, client, sentence, small_app


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 100_000, "deeper than 64"),
        (b'{"a":' * 100_000, "deeper than 64"),
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b"\xff\xfe{}", "not UTF-8: byte 0"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        ('{"a": 1}'.encode("utf-16-le"), "NUL"),
        ('{"a": 1}'.encode("utf-32-le"), "NUL"),
        (rb'{"a": "\ud800"}', "surrogate"),
        (rb'{"a": "\ude00\ud83d"}', "surrogate"),
        (rb'{"a": "\ud83d\\\ude00"}', "surrogate"),
    ],
)
def test_a_body_no_parser_should_see_is_refused(body: bytes, said: str) -> None:
    answer = client().post("/v1/echo", content=body, headers={"content-type": "application/json"})
    assert said in sentence(answer, 400)


@pytest.mark.parametrize(
    "value",
    [{}, "[" * 100_000, '\\"[' * 50_000, "\\" * 99_999, {"a": ["]]", '{"', "😀", "\\ud800"]}, [[[]]] * 20_000, "\x00"],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_body_that_only_looks_bad_passes(value: Any, ascii_only: bool) -> None:
    answer = client().post("/v1/echo", content=json.dumps(value, ensure_ascii=ascii_only).encode())
    assert answer.json() == value


def test_nesting_is_counted_as_a_parser_would() -> None:
    for depth in (1, 7, 64):
        for left, right in (("[", "]"), ('{"a":', "}"), ('[{"[":', "}]")):
            levels = depth * (1 + (left[0] == "[" and len(left) > 1))
            body = (left * depth + "1" + right * depth).encode()
            assert flaw(body, levels) is None
            assert flaw(body, levels - 1) is not None


def test_a_large_body_is_refused_by_its_length_alone() -> None:
    body = Sent([b"x" * 65536] * 1024)
    status, _, told = asked(guarded(small_app(), Settings()), body, {"content-length": str(64 << 20)})
    assert (status, body.bytes) == (413, 0)
    assert told["error"]["code"] == "body_too_large"
    assert asked(guarded(small_app(), Settings()), body, {"content-length": "9" * 10_000})[0] == 413


def test_a_large_body_in_chunks_is_read_no_further_than_the_limit() -> None:
    body = Sent([b"x" * 65536] * 1024)
    status, _, _ = asked(guarded(small_app(), Settings()), body, {"transfer-encoding": "chunked"})
    assert status == 413
    assert body.bytes <= Settings().max_body_bytes + 65536


def test_a_length_that_lies_does_not_open_the_door() -> None:
    body = Sent([b"x" * 65536] * 1024)
    assert asked(guarded(small_app(), Settings()), body, {"content-length": "2"})[0] == 413
    assert asked(guarded(small_app(), Settings()), Sent([b"[1]"]), {"content-length": "no"})[2] == [1]


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    settings = Settings(body_timeout_s=0.05)
    status, headers, told = asked(guarded(small_app(), settings), Sent([b'{"a"'], stalls=True))
    assert (status, headers["connection"]) == (408, "close")
    assert "0.05 s" in told["error"]["message"]


def test_the_sum_of_bodies_is_bounded_and_what_is_held_is_let_go() -> None:
    settings = Settings(max_body_bytes=1024, body_timeout_s=0.3)

    async def run() -> None:
        bodies = Bodies(small_app(), settings)

        async def one() -> int:
            try:
                await bodies({"type": "http", "headers": []}, Sent([b"x" * 1000], stalls=True), send)
            except APIError as error:
                return error.status
            return 0

        async def send(message: Any) -> None: ...

        statuses = await asyncio.gather(*(one() for _ in range(20)))
        assert statuses.count(408) == 16
        assert statuses.count(503) == 4
        assert bodies.held_bytes == 0

    asyncio.run(run())


def test_whoever_leaves_while_sending_gets_no_answer() -> None:
    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def run() -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await Bodies(small_app(), Settings())({"type": "http", "headers": []}, left, send)
        assert sent == []

    asyncio.run(run())
