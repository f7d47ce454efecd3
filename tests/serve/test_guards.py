"""Guards: refused request heads, hosts and origins; each refusal is one sentence with a 4xx status."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from paceline.serve import health
from paceline.serve.app import application
from paceline.serve.guards import guarded
from paceline.serve.settings import Settings
from serve.guarding import KEY, LOCAL, client, sentence, small_app


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


def test_pages_of_allowed_origins_may_call() -> None:
    page = "https://page.example"
    assert client().post("/v1/echo", json=1, headers={"origin": LOCAL}).status_code == 200
    there = client(cors_origins=(page,), api_keys=(KEY,))
    asking = {"origin": page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    assert there.options("/v1/echo", headers=asking).headers["access-control-allow-origin"] == page
    # browsers send a preflight before a page from the internet may call a server in a private network
    private = there.options("/v1/echo", headers={**asking, "access-control-request-private-network": "true"})
    assert (private.status_code, private.headers["access-control-allow-private-network"]) == (200, "true")
    # a page may read the reason of a refusal
    assert there.post("/v1/echo", json=1, headers={"origin": page}).headers["access-control-allow-origin"] == page
    assert "access-control-allow-origin" not in there.post("/v1/echo", json=1, headers={"origin": "https://evil.example"}).headers


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


def test_answers_carry_a_request_id_and_security_headers() -> None:
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


def test_health_is_503_with_the_state_while_restarting_or_draining() -> None:
    for state in ("restarting", "draining"):
        answer = TestClient(application([health.router(lambda state=state: state)])).get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": state})
        assert int(answer.headers["retry-after"]) > 0
    assert TestClient(application([health.router(lambda: "ok")])).head("/health").status_code == 200, "some clients use HEAD"
