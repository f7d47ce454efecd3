"""Bad input: each row is one sentence and a 4xx, nothing is read or parsed that need not be, and keys guard every route."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

import paceline.serve.routes
from paceline.serve import health, keys as keys_module, metrics
from paceline.serve.app import application
from paceline.serve.bodies import flaw
from paceline.serve.errors import APIError
from paceline.serve.guards import OPEN_FOLDER, OPEN_PATHS, Bodies, guarded
from paceline.serve.keys import Keys, shown_key
from paceline.serve.meter import Meter
from paceline.serve.settings import Settings
from serve.fakes import FakeService
from serve.wires import Wire

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


class Sent:
    """A body that arrives in parts; how much of it was asked for."""

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
    """Status, headers and JSON that an application answers a raw request with."""
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


@pytest.mark.parametrize(
    "headers",
    [{"x-long": "a" * 200_000}, {f"x-{n}": "a" for n in range(150)}, {f"x-{n}": "a" * 1000 for n in range(50)}],
    ids=["one long", "many", "many long"],
)
def test_large_heads_are_refused(headers: dict[str, str]) -> None:
    answer = client().get("/health", headers=headers)
    assert "larger than" in sentence(answer, 431)
    assert answer.headers["connection"] == "close"


def test_a_long_target_counts_as_part_of_the_head() -> None:
    sentence(client().get("/health", params={"a": "b" * 50_000}), 431)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil:8000", "", "[::2]", "user@localhost", "☃"]
)
def test_a_foreign_host_is_refused(host: str) -> None:
    sentence(client().get("/health", headers=[("host", host.encode())]), 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]"])
def test_names_of_this_machine_pass(host: str) -> None:
    assert client().get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:9999", "https://localhost.evil.example"])
def test_without_a_key_pages_of_others_may_not_call(origin: str) -> None:
    sentence(client().post("/v1/echo", json=1, headers={"origin": origin}), 403)


def test_pages_that_may_call_do() -> None:
    page = "https://page.example"
    assert client().post("/v1/echo", json=1, headers={"origin": LOCAL}).status_code == 200
    there = client(cors_origins=(page,), api_keys=(KEY,))
    asking = {"origin": page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    assert there.options("/v1/echo", headers=asking).headers["access-control-allow-origin"] == page
    # a page may read why it was refused
    assert there.post("/v1/echo", json=1, headers={"origin": page}).headers["access-control-allow-origin"] == page
    assert "access-control-allow-origin" not in there.post("/v1/echo", json=1, headers={"origin": "https://evil.example"}).headers


WRONG = [
    {},
    {"authorization": "Bearer"},
    {"authorization": f"Bearer {KEY}x"},
    {"authorization": f"Bearer {KEY[:-1]}"},
    {"authorization": f"Basic {KEY}"},
    {"authorization": KEY},
    {"authorization": "Bearer \xff\xfe"},
    {"x-api-key": ""},
    {"x-api-key": OTHER[:-1]},
    {"cookie": f"key={KEY}"},
]


@pytest.mark.parametrize("headers", WRONG, ids=str)
def test_a_wrong_key_opens_nothing(headers: dict[str, str]) -> None:
    raw = [(name, value.encode("latin-1")) for name, value in headers.items()]
    answer = client(api_keys=(KEY, OTHER)).post("/v1/echo", content=b"1", headers=raw)
    assert sentence(answer, 401) == "the API key is missing or wrong"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert client(api_keys=(KEY,)).get(f"/v1/refused?key={KEY}").status_code == 401


@pytest.mark.parametrize(
    "headers", [{"authorization": f"Bearer {OTHER}"}, {"authorization": f"bearer  {KEY}"}, {"x-api-key": KEY}]
)
def test_any_of_the_keys_opens(headers: dict[str, str]) -> None:
    assert client(api_keys=(KEY, OTHER)).post("/v1/echo", content=b"1", headers=headers).json() == 1


def test_a_key_is_asked_for_before_a_body_is_read() -> None:
    body = Sent([b"x" * 1000])
    assert asked(guarded(small_app(), Settings.model_validate({"api_keys": [KEY]})), body)[0] == 401
    assert body.bytes == 0


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def watched(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(keys_module, "compare_digest", watched)
    known = Keys([KEY.encode(), OTHER.encode(), b"third-key"])
    for shown in (KEY.encode(), b"", b"x" * 10_000, b"third-key"):
        compared.clear()
        known.which(shown)
        assert compared == [(32, 32)] * 3
    assert [known.which(key) for key in (KEY.encode(), OTHER.encode(), b"third-key", b"")] == [0, 1, 2, None]
    assert shown_key([(b"x-api-key", b"a"), (b"authorization", b"Bearer b")]) == b"b"


def served_routes() -> list[APIRoute]:
    """All routes of the server, found by their modules."""
    service, settings = FakeService(), Settings()
    modules = [import_module(f"paceline.serve.routes.{one.name}") for one in iter_modules(paceline.serve.routes.__path__)]
    routers = [module.router(service, settings) for module in modules if hasattr(module, "router")]
    app = application([*routers, health.router(lambda: "ok"), metrics.router(Meter(), "m")])
    return [one for one in _flat(app.routes) if isinstance(one, APIRoute) or hasattr(one, "methods")]


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    for route in routes:
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        yield from _flat(inner.routes) if inner is not None and hasattr(inner, "routes") else [route]


def test_every_route_but_health_and_the_page_wants_a_key() -> None:
    routes = served_routes()
    paths = {route.path for route in routes}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/metrics", "/openapi.json"} <= paths
    inner = FastAPI()
    there = TestClient(guarded(inner, Settings.model_validate({"api_keys": [KEY]})), LOCAL)
    for route in routes:
        for method in (*(route.methods or ()), "DELETE", "OPTIONS", "PUT"):
            status = there.request(method, route.path).status_code
            opened = (route.path in OPEN_PATHS or route.path.startswith(OPEN_FOLDER)) and method in ("GET", "HEAD")
            assert (status != 401) == opened, (method, route.path)
    for path in ("//health", "/health/", "/HEALTH", "/page/../v1/models", "/%2e%2e/v1/models", "/x/page/", "/page"):
        status = there.get(path).status_code
        assert status in (401, 404)
    assert there.get("/page/app.js").status_code == 404


def test_an_unexpected_error_is_one_sentence_to_the_client() -> None:
    answer = client().get("/v1/broken")
    assert sentence(answer, 500) == "the server failed to answer"
    assert "secret" not in answer.text


def test_an_unexpected_error_in_a_guard_is_one_sentence_too() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raise RuntimeError("a secret text")

    app = small_app()
    app.build_middleware_stack = lambda: broken
    assert sentence(TestClient(guarded(app, Settings()), LOCAL).get("/health"), 500) == "the server failed to answer"


def test_anthropic_clients_are_told_in_their_form() -> None:
    answer = client(api_keys=(KEY,)).post("/v1/messages", json=1)
    assert answer.status_code == 401
    assert answer.json() == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "the API key is missing or wrong"},
    }
    large = client(max_body_bytes=1024).post("/v1/messages", content=b"x" * 2000)
    assert large.json()["error"]["type"] == "request_too_large"


def test_answers_carry_an_id_and_what_browsers_must_not_do() -> None:
    there = client()
    for path in ("/health", "/v1/broken", "/nowhere"):
        headers = there.get(path).headers
        assert headers["x-request-id"].startswith("req_")
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert there.get("/health", headers={"x-request-id": "my-id.1:2"}).headers["x-request-id"] == "my-id.1:2"
    for odd in (b"a b", b"a\xffb", b"x" * 500, b""):
        assert there.get("/health", headers=[("x-request-id", odd)]).headers["x-request-id"].startswith("req_")
    assert there.get("/v1/refused").headers["retry-after"] == "7"


def test_health_says_what_the_server_does_instead() -> None:
    for state in ("starting", "restarting", "draining"):
        answer = TestClient(application([health.router(lambda state=state: state)])).get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": state})
        assert int(answer.headers["retry-after"]) > 0


# what follows needs real connections


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
def test_what_is_no_request_is_refused(wire: Wire, head: bytes) -> None:
    answer = wire.told(head)
    assert answer.split(b" ")[1] == b"400"
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "this is not a request in HTTP/1.1"


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


def test_whoever_waits_to_be_told_to_go_on_is_refused_at_once(wire: Wire) -> None:
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (64 << 20)
    assert wire.told(head).startswith(b"HTTP/1.1 413")


def test_a_stream_that_breaks_is_cut_and_not_ended(wire: Wire) -> None:
    ask = b"GET /v1/stream%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert wire.told(ask % b"").endswith(b"0\r\n\r\n")
    broken = wire.told(ask % b"?breaks=1")
    assert b"one" in broken
    assert not broken.endswith(b"0\r\n\r\n")


def test_an_answering_connection_is_left_in_peace(wire: Wire) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert wire.told(request, pause_s=0.6, then=request).count(b"HTTP/1.1 200") == 2
    assert not wire.closed
