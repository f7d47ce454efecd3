"""Bad bodies: each is refused in one sentence, and as little as possible is read or parsed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from paceline.serve.bodies import flaw
from paceline.serve.errors import APIError
from paceline.serve.guards import Bodies, guarded
from paceline.serve.recording import Record, _current
from paceline.serve.settings import Settings
from serve.guarding import Sent, asked, client, sentence, small_app

LARGE = b"1".rjust(1 << 16)
"""Among the smallest bodies that count as large."""


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
        (b"[" + b'{"a":1},' * 16_384 + b"{}]", "more than 16384 objects"),
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
    [
        {},
        "[" * 100_000,
        '\\"[' * 50_000,
        "\\" * 99_999,
        {"a": ["]]", '{"', "😀", "\\ud800"]},
        [[[]]] * 20_000,
        [{}] * 16_384,
        "{" * 20_000,
        "\x00",
    ],
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


def test_a_false_content_length_does_not_lift_the_body_limit() -> None:
    body = Sent([b"x" * 65536] * 1024)
    assert asked(guarded(small_app(), Settings()), body, {"content-length": "2"})[0] == 413
    assert asked(guarded(small_app(), Settings()), Sent([b"[1]"]), {"content-length": "no"})[2] == [1]


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    settings = Settings(body_timeout_s=0.05)
    status, headers, told = asked(guarded(small_app(), settings), Sent([b'{"a"'], stalls=True))
    assert (status, headers["connection"]) == (408, "close")
    assert "0.05 s" in told["error"]["message"]


def test_the_sum_of_bodies_is_bounded_and_what_is_held_is_let_go() -> None:
    settings = Settings(max_body_bytes=len(LARGE), body_timeout_s=0.3)

    async def run() -> None:
        bodies = Bodies(small_app(), settings)

        async def one() -> int:
            try:
                await bodies({"type": "http", "headers": []}, Sent([LARGE], stalls=True), send)
            except APIError as error:
                return error.status
            return 0

        async def send(message: Any) -> None: ...

        statuses = await asyncio.gather(*(one() for _ in range(20)))
        assert statuses.count(408) == 16
        assert statuses.count(503) == 4
        assert not bodies.arriving.taken

    asyncio.run(run())


class Waiting:
    """The body guard before a route that answers when told to."""

    def __init__(self, max_body_bytes: int) -> None:
        self.ends: list[asyncio.Event] = []
        self.bodies = Bodies(self._route, Settings(max_body_bytes=max_body_bytes))

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.ends.append(end := asyncio.Event())
        await end.wait()

    async def taken(self, body: bytes, key: int | None = None) -> bool:
        """Whether a request reaches the route, where it stays."""

        async def send(message: Any) -> None: ...

        before, token = len(self.ends), _current.set(Record(key=key))
        one = asyncio.ensure_future(self.bodies({"type": "http", "headers": []}, Sent([body]), send))
        _current.reset(token)
        while len(self.ends) == before and not one.done():
            await asyncio.sleep(0.001)
        if not one.done():
            return True
        refused = one.exception()
        assert isinstance(refused, APIError)
        assert (refused.status, refused.code, refused.retry_after_s) == (503, "overloaded", 1)
        return False

    def stalled(self, body: bytes, key: int | None) -> asyncio.Future[None]:
        """A body that stalls after these bytes."""

        async def send(message: Any) -> None: ...

        token = _current.set(Record(key=key))
        one = asyncio.ensure_future(self.bodies({"type": "http", "headers": []}, Sent([body], stalls=True), send))
        _current.reset(token)
        return one

    async def end(self, *ends: asyncio.Event) -> None:
        for end in ends:
            end.set()
        await asyncio.sleep(0.01)


def test_a_large_body_counts_until_it_is_answered() -> None:
    async def run() -> None:
        waiting = Waiting(len(LARGE))
        assert [await waiting.taken(LARGE) for _ in range(17)] == [True] * 16 + [False]
        await waiting.end(waiting.ends[0])
        assert [await waiting.taken(LARGE) for _ in range(2)] == [True, False]
        await waiting.end(*waiting.ends)
        assert not waiting.bodies.kept.taken

    asyncio.run(run())


def test_ordinary_bodies_are_taken_however_many_are_in_flight() -> None:
    async def run() -> None:
        waiting, ordinary = Waiting(len(LARGE)), b"1".rjust(8192)
        assert all([await waiting.taken(ordinary) for _ in range(8 + 256)])
        # and all large ones that fit beside them
        assert [await waiting.taken(LARGE) for _ in range(17)] == [True] * 16 + [False]
        assert await waiting.taken(ordinary)
        await waiting.end(*waiting.ends)

    asyncio.run(run())


def test_the_large_bodies_of_one_key_do_not_keep_those_of_another_out() -> None:
    async def run() -> None:
        waiting = Waiting(len(LARGE))
        assert sum([await waiting.taken(LARGE, 0) for _ in range(17)]) == 16
        assert 0 < sum([await waiting.taken(LARGE, 1) for _ in range(17)]) < 16
        assert not await waiting.taken(LARGE, 0)
        # twice the limit is the maximum, however many keys there are
        assert sum([await waiting.taken(LARGE, key) for key in range(2, 99)]) < 16
        assert waiting.bodies.kept.taken.total() == 2 * 16 * len(LARGE)
        await waiting.end(*waiting.ends)
        assert not waiting.bodies.kept.taken

    asyncio.run(run())


def test_bodies_that_stall_keep_neither_small_ones_nor_those_of_another_key_out() -> None:
    async def run() -> None:
        waiting = Waiting(len(LARGE))
        stalled = [waiting.stalled(LARGE, 0) for _ in range(16)]
        await asyncio.sleep(0.01)
        assert waiting.bodies.arriving.taken == {0: 16 * len(LARGE)}
        assert not await waiting.taken(LARGE, 0)
        assert await waiting.taken(b"1", 0)
        assert await waiting.taken(LARGE, 1)
        for one in stalled:
            one.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)
        assert not waiting.bodies.arriving.taken
        assert await waiting.taken(LARGE, 0)
        await waiting.end(*waiting.ends)

    asyncio.run(run())


def test_a_bad_body_is_let_go() -> None:
    async def run() -> None:
        bodies = Bodies(small_app(), Settings())

        async def send(message: Any) -> None: ...

        with pytest.raises(APIError, match="UTF-8"):
            await bodies({"type": "http", "headers": []}, Sent([b"\xff" * len(LARGE)]), send)
        assert not bodies.kept.taken

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
