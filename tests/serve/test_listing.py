"""/v1/models, /v1/speculation and /version over a service without an engine."""

from __future__ import annotations

from paceline.serve.routes.listing import router
from paceline.version import __version__
from serve.fakes import FakeService
from serve.front import client_of
from serve.openapi_schema import check

ENTRY = {"id": "fake-model", "object": "model", "created": 1_700_000_000, "owned_by": "paceline", "max_model_len": 512}


def test_models():
    client = client_of(FakeService(), router)
    assert client.get("/v1/models").json() == {"object": "list", "data": [ENTRY]}
    assert client.get("/v1/models/fake-model").json() == ENTRY
    unknown = client.get("/v1/models/other")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"


def test_a_name_may_hold_slashes():
    client = client_of(FakeService(model="org/name"), router)
    assert client.get("/v1/models/org/name").json()["id"] == "org/name"


def test_speculation():
    told = client_of(FakeService(), router).get("/v1/speculation").json()
    assert told["drafters"][1] == {
        "name": "ngram",
        "summary": "What followed before follows again.",
        "source": "Saxena 2023",
    }
    del told["drafters"]
    assert told == {
        "model": "fake-model",
        "target": "fake-target",
        "default": ["ngram", "model"],
        "policy": "adaptive",
        "verifier": "match",
        "has_chat_template": True,
        "context_length": 512,
        "batch": 8,
    }


def test_version():
    assert client_of(FakeService(), router).get("/version").json() == {"version": __version__}


def test_model_listings_and_errors_are_what_openai_describes():
    client = client_of(FakeService(), router)
    check("ListModelsResponse", client.get("/v1/models").json())
    check("Model", client.get("/v1/models/fake-model").json())
    check("ErrorResponse", client.get("/v1/models/other").json())
