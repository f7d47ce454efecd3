"""The payer of a request is its API key, whatever salt it names."""

from __future__ import annotations

import asyncio

import pytest

from paceline.params import SamplingParams
from paceline.serve import service
from paceline.serve.asking import Ask, Delta, Ending
from paceline.serve.pipe import News
from paceline.serve.process import Listener
from paceline.serve.recording import Record
from serve.test_service import service_of
from serve.test_worker import fresh


class NotingEngine:
    """Records each ask, and ends it at once."""

    load = 0

    def __init__(self) -> None:
        self.asks: list[Ask] = []

    def ask(self, ask: Ask, listener: Listener) -> int:
        self.asks.append(ask)
        listener.brought(Delta(ending=Ending("length", 7)))
        return len(self.asks)

    def end(self, number: int) -> None: ...


@pytest.mark.parametrize(("key", "tenant", "payer"), [(3, "3/salt", "3"), (None, "salt", "")])
def test_a_salt_makes_another_tenant_and_no_other_payer(
    key: int | None, tenant: str, payer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "record", lambda: Record(key=key))
    engine = NotingEngine()
    served = service_of(engine)

    async def whole() -> None:
        async for _ in served.submit([Ask((1, 2), SamplingParams(max_tokens=1), tenant="salt")]):
            pass

    asyncio.run(whole())
    worker = fresh()
    worker._begin(1, *engine.asks, News())
    (running,) = worker._running.values()
    assert (running.sequence.tenant, running.sequence.payer) == (tenant, payer)
