"""Serving: starts all parts of the server, from settings to a port, and shuts them down on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import uvicorn

from paceline.models.embedded import DEFAULT
from paceline.models.load import resolve
from paceline.models.tokenizer import Tokenizer
from paceline.open_files import raise_limit
from paceline.serve import health, metrics
from paceline.serve.app import application
from paceline.serve.connections import most_connections, uvicorn_options
from paceline.serve.guards import guarded
from paceline.serve.listening import bound, listen
from paceline.serve.logs import configure
from paceline.serve.meter import Meter
from paceline.serve.process import EngineProcess
from paceline.serve.routes import chat, completions, listing, messages, page, responses, tokens
from paceline.serve.service import EngineService
from paceline.serve.settings import Settings

_log = logging.getLogger("paceline.serve")


class _Server(uvicorn.Server):
    """Leaves signals to `serve`, which drains: uvicorn would end the process with the signal's own exit code.

    expire: ends all requests in flight with the output they have.
    """

    def __init__(self, config: uvicorn.Config, expire: Callable[[], None]) -> None:
        super().__init__(config)
        self._expire = expire

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Keep listening until requests in flight have ended: uvicorn would stop, and cut off connections not accepted yet.
        Requests that have not ended shortly before the timeout are expired: uvicorn would break them off."""
        patience_s = self.config.timeout_graceful_shutdown or 0
        until = time.monotonic() + patience_s
        in_flight = await self._waited({*self.server_state.tasks}, until - min(_ENDING_S, patience_s / 2))
        if in_flight:
            self._expire()
            await self._waited(in_flight, until)
        # from Python 3.12 on uvicorn waits for connections to close even after a second signal
        self.config.timeout_graceful_shutdown = 1 if self.force_exit else max(round(until - time.monotonic()), 1)
        await super().shutdown(sockets)

    async def _waited(self, in_flight: set[asyncio.Task[None]], until: float) -> set[asyncio.Task[None]]:
        """Wait until these have ended, `until`, or a second signal; returns those that have not ended."""
        while in_flight and not self.force_exit and time.monotonic() < until:
            _, in_flight = await asyncio.wait(in_flight, timeout=_LOOKED_S)
        return in_flight


_ENDING_S = 1.0
"""Time before the shutdown timeout at which unfinished answers are ended with the output they have."""
_LOOKED_S = 0.1
"""Interval of checks for a second signal."""


async def serve(settings: Settings, started: Callable[[str, EngineService], None]) -> None:
    """Serve until SIGTERM or SIGINT: then new requests are refused, those in flight get `drain_timeout_s` to end.

    started: called once with the address and the service. Raises SettingsError if the port cannot be bound,
    before anything is loaded; ModelError or EngineError if the engine cannot be started.
    """
    configure(settings)
    raise_limit()
    if (asked := settings.batch + settings.queue) > (most := most_connections()):
        _log.warning("%d requests may run and wait by --batch and --queue, but %d connections are taken at most", asked, most)
    with bound(settings.host, settings.port) as sockets:
        await _serve_at(sockets, settings, started)


async def _serve_at(sockets: Sequence[socket.socket], settings: Settings, started: Callable[[str, EngineService], None]) -> None:
    folder = Path(resolve(settings.model if settings.model is not None else DEFAULT))
    settings = settings.model_copy(update={"model": str(folder)})
    meter = Meter()
    engine = EngineProcess(worker_settings(settings), meter.step, meter.engine_restarted)
    try:
        # loading the tokenizer and starting the engine both take seconds and are independent
        reading = asyncio.create_task(asyncio.to_thread(Tokenizer, folder))
        try:
            ready = await engine.start()
        finally:
            # always retrieve the exception: asyncio logs a traceback for one that is never retrieved
            await asyncio.wait([reading])
            reading.exception()
        service = EngineService(engine, reading.result(), settings, ready, meter)

        def state() -> health.State:
            if service.draining:
                return "draining"
            return "ok" if engine.ready is not None else "restarting"

        routers = [module.router(service, settings) for module in (chat, completions, responses, messages, tokens, listing, page)]
        routers += [metrics.router(meter, service.model), health.router(state)]
        server = _Server(
            uvicorn.Config(
                guarded(application(routers), settings, meter.responded),
                log_level=max(logging.WARNING, logging.getLogger("paceline").level),
                **uvicorn_options(settings),
            ),
            service.expire_all,
        )

        def stop() -> None:
            if service.draining:
                server.force_exit = True
            service.draining = server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        listen(sockets, settings.host, settings.port)
        port = sockets[0].getsockname()[1]
        # handle a pending interrupt here, before uvicorn runs, which would print a long traceback for it
        await asyncio.sleep(0)
        serving = asyncio.create_task(server.serve([*sockets]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            started(f"http://{host}:{port}", service)
        await serving
    finally:
        await engine.close()


def worker_settings(settings: Settings) -> bytes:
    """The settings that the engine needs, as one line of JSON; API keys stay with the server."""
    drafting = {"model", "draft", "verify", "lossy", "policy", "weights", "kv_cache", "offer"}
    sizes, logs = {"batch", "prefill_chunk", "cache_tokens"}, {"log_level", "log_json", "log_prompts"}
    return settings.model_dump_json(include=drafting | sizes | logs).encode()
