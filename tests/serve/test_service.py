"""The service between routes and engine, over an engine of a few lines: what becomes of requests whose time is up."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from paceline.models.embedded import DEFAULT, WEIGHTS_FOLDER
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.serve import service
from paceline.serve.asking import Ask, Delta, Ending
from paceline.serve.errors import APIError
from paceline.serve.meter import Meter
from paceline.serve.pipe import Ready
from paceline.serve.process import EngineProcess, Listener
from paceline.serve.service import EngineService
from paceline.serve.settings import Settings

READY = Ready(512, 10, (), (), {}, "target", "policy", "verifier")


class SlowEngine:
    """Tells what there is so many seconds after it was told that the time is up; never, for None."""

    load = 0

    def __init__(self, step_s: float | None) -> None:
        self._step_s, self.expired, self.asked = step_s, 0, 0

    def ask(self, ask: Ask, listener: Listener) -> int:
        self._listener = listener
        return 1

    def expire(self, number: int) -> None:
        self.expired += 1
        if self._step_s is not None:
            last = Delta("so far", (1,), ending=Ending("timeout", 1))
            asyncio.get_running_loop().call_later(self._step_s, self._listener.brought, last)

    def end(self, number: int) -> None: ...

    def given_up(self) -> bool:
        self.asked += 1
        return self._step_s is None and self.asked == 3


def answer(engine: SlowEngine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(service, "_GRACE_S", 0.02)
    settings = Settings(request_timeout_s=0.02)
    served = EngineService(
        cast("EngineProcess", engine), Tokenizer(WEIGHTS_FOLDER / DEFAULT), settings, READY, cast("Any", Meter())
    )

    async def whole() -> str:
        return "".join([delta.text async for _, delta in served.submit([Ask((1,), SamplingParams())])])

    return asyncio.run(asyncio.wait_for(whole(), 20))


def test_an_engine_amid_a_long_step_tells_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SlowEngine(0.2)
    assert answer(engine, monkeypatch) == "so far"
    assert engine.expired == 1
    assert engine.asked > 1


def test_a_silent_engine_is_asked_about_until_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SlowEngine(None)
    with pytest.raises(APIError) as refused:
        answer(engine, monkeypatch)
    assert (refused.value.status, refused.value.code, engine.asked) == (503, "engine_silent", 3)
