"""Every route requires an API key."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

import paceline.serve.routes
from paceline.serve import health, keys as keys_module, metrics
from paceline.serve.app import application
from paceline.serve.guards import OPEN_FOLDER, OPEN_PATHS, guarded
from paceline.serve.keys import Keys, shown_key
from paceline.serve.meter import Meter
from paceline.serve.settings import Settings
from serve.fakes import FakeService
from serve.guarding import KEY, LOCAL, OTHER, Sent, asked, client, sentence, small_app

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
    """All routes of the server, found in its modules."""
    service, settings = FakeService(), Settings()
    modules = [import_module(f"paceline.serve.routes.{one.name}") for one in iter_modules(paceline.serve.routes.__path__)]
    routers = [module.router(service, settings) for module in modules if hasattr(module, "router")]
    app = application([*routers, health.router(lambda: "ok"), metrics.router(Meter(), "m")])
    return [one for one in _flat(app.routes) if isinstance(one, APIRoute) or hasattr(one, "methods")]


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    for route in routes:
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        yield from _flat(inner.routes) if inner is not None and hasattr(inner, "routes") else [route]


def test_the_schema_names_the_path_that_a_proxy_strips() -> None:
    app = application([])
    assert "servers" not in TestClient(app).get("/openapi.json").json()
    assert TestClient(app, root_path="/llm").get("/openapi.json").json()["servers"] == [{"url": "/llm"}]
    assert TestClient(app).head("/openapi.json").status_code == 200


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
