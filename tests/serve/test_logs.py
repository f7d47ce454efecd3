"""Logs: one line per request, as text or JSON, without any client text unless configured."""

from __future__ import annotations

import io
import json
import logging
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from fastapi import APIRouter, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel

from paceline.params import SamplingParams
from paceline.serve import health, logs
from paceline.serve.app import application
from paceline.serve.asking import Ask
from paceline.serve.guards import guarded
from paceline.serve.meter import Meter
from paceline.serve.settings import Settings
from serve.fakes import FakeService

SECRET = "what-the-client-wrote"
KEY = "sk-a-key-nobody-may-see"


def routes(service: FakeService, meter: Meter) -> APIRouter:
    answering = APIRouter()

    @answering.post("/v1/answer/{name}")
    async def answer(request: Request, name: str) -> str:
        await request.json()
        asks = [Ask((1, 2, 3), SamplingParams(seed=1))] * 2
        async with aclosing(meter.watched(asks, partial(service.counted, asks))) as deltas:
            return "".join([delta.text async for _, delta in deltas])

    class Strict(BaseModel):
        number: int

    @answering.post("/v1/broken")
    async def broken(request: Request) -> None:
        try:
            Strict(number=(await request.json())["text"])
        except ValueError as error:
            raise KeyError((await request.json())["text"]) from error

    return answering


def served(**values: Any) -> tuple[TestClient, io.StringIO, Meter]:
    settings, stream, meter = Settings.model_validate(values), io.StringIO(), Meter()
    logs.configure(settings, stream)
    app = application([routes(FakeService(), meter), health.router(lambda: "ok")])
    there = TestClient(guarded(app, settings, meter.responded), "http://localhost", raise_server_exceptions=False)
    return there, stream, meter


def told(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_is_one_line_of_sizes_and_times() -> None:
    there, stream, meter = served(log_json=True, api_keys=[KEY])
    answer = there.post(
        f"/v1/answer/{SECRET}?text={SECRET}",
        json={"text": SECRET},
        headers={"x-api-key": KEY, "x-other": SECRET, "x-request-id": "id-1"},
    )
    assert answer.status_code == 200
    (line,) = told(stream)
    assert line["message"] == "POST /v1/answer/{name}"
    assert (line["id"], line["status"], line["key"], line["level"]) == ("id-1", 200, 0, "info")
    assert (line["choices"], line["prompt_tokens"], line["tokens"], line["finish"], line["tau"]) == (2, 6, 24, "stop", 3.0)
    assert 0 < line["ttft_s"] <= line["duration_s"] < 5
    assert line["time"].endswith("Z")
    assert SECRET not in stream.getvalue()
    assert KEY not in stream.getvalue()
    assert meter.responses == {200: 1}


def test_text_log_lines_hold_route_status_and_tokens_but_no_content() -> None:
    there, stream, _ = served()
    there.post("/v1/answer/x", json={"text": SECRET})
    (line,) = stream.getvalue().splitlines()
    assert "info    POST /v1/answer/{name} id=req_" in line
    assert " status=200 " in line
    assert " tokens=24 " in line
    assert SECRET not in line


def test_refused_requests_are_logged_without_what_they_said() -> None:
    there, stream, meter = served(log_json=True, api_keys=[KEY], max_body_bytes=1024)
    there.post("/v1/answer/x", json={"text": SECRET}, headers={"authorization": f"Bearer {SECRET}"})
    there.post("/v1/answer/x", content=SECRET * 100, headers={"x-api-key": KEY})
    there.get("/" + "x" * 5000, headers={"x-api-key": KEY})
    statuses = [line["status"] for line in told(stream)]
    assert statuses == [401, 413, 404]
    assert SECRET not in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) < 500
    assert meter.responses == {401: 1, 413: 1, 404: 1}


@pytest.mark.parametrize("as_json", [True, False])
def test_an_error_is_logged_with_its_place_but_not_its_words(as_json: bool) -> None:
    there, stream, _ = served(log_json=as_json)
    assert there.post("/v1/broken", json={"text": SECRET}).status_code == 500
    text = stream.getvalue()
    assert SECRET not in text
    assert "KeyError (message withheld)" in text
    assert "ValidationError (message withheld)" in text
    assert "test_logs.py" in text
    if as_json:
        assert [line["level"] for line in told(stream)] == ["error", "info"]


def test_texts_are_logged_where_that_was_asked_for() -> None:
    there, stream, _ = served(log_json=True, log_prompts=True)
    there.post("/v1/answer/x", json={"text": SECRET})
    there.post("/v1/broken", json={"text": SECRET})
    answered, failed, _ = told(stream)
    assert json.loads(answered["body"]) == {"text": SECRET}
    assert SECRET in failed["exception"]


def test_checks_of_health_are_quiet() -> None:
    there, stream, _ = served(log_json=True)
    there.get("/health")
    assert told(stream) == []
    there, stream, _ = served(log_json=True, log_level="debug")
    there.get("/health")
    assert [line["message"] for line in told(stream)] == ["GET /health"]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_client_cannot_write_lines_of_its_own(as_json: bool) -> None:
    there, stream, _ = served(log_json=as_json)
    there.get("/a%0Ab%1b[31m%7f%C2%85c")
    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert not any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in text.rstrip("\n"))


def test_all_loggers_speak_through_one_handler() -> None:
    _, stream, _ = served(log_json=True)
    logging.getLogger("uvicorn.error").info("listening")
    logging.getLogger("some.library").info("too quiet")
    logging.getLogger("asyncio").warning("slow")
    messages = [line["message"] for line in told(stream)]
    assert "listening" in messages
    assert "slow" in messages
    assert "too quiet" not in messages
