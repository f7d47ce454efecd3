"""How long uvicorn waits for connections to close after the last request has ended or a second signal has come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn

from paceline.serve.serving import _Server


@pytest.mark.parametrize(("signals", "patience_s"), [(1, 30), (2, 1)])
def test_a_second_signal_shortens_the_wait_for_connections_to_1_second(
    monkeypatch: pytest.MonkeyPatch, signals: int, patience_s: int
) -> None:
    async def shutdown(self: uvicorn.Server, sockets: Any = None) -> None: ...

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    monkeypatch.setattr(uvicorn.Server, "shutdown", shutdown)
    server = _Server(uvicorn.Config(app, timeout_graceful_shutdown=30, log_config=None), lambda: None)
    server.force_exit = signals > 1
    asyncio.run(server.shutdown())
    assert server.config.timeout_graceful_shutdown == patience_s
