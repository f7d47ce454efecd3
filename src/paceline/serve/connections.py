"""Connections: how uvicorn is set up, and what it does not watch by itself: clients that never finish what they began to send, or
never read what they asked for."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from paceline.serve.errors import APIError
from paceline.serve.recording import path_of
from paceline.serve.refusals import response_of
from paceline.serve.settings import Settings

_PATIENCE_S = 10.0
"""For the head of a request to arrive whole, and for a body that is no longer read to end."""
_READING_S = 60.0
"""For a client to read some more of its answer, once so much lies unread that nothing more is sent."""
_KEEP_ALIVE_S = 620
"""Longer than clients and load balancers pool connections by default (nginx and Amazon's 60 s, Go 90 s, Google's 600 s), so that
it is they who close one, and not we while they send."""
_FILES_KEPT = 64
"""Open files that are left for other things than connections."""
_MOST_CONNECTIONS = 4096
_log = logging.getLogger(__name__)


class _Alarm:
    """What is done after a while, unless it is called off."""

    _timer: asyncio.TimerHandle | None = None

    def set(self, loop: asyncio.AbstractEventLoop, seconds: float, does: Callable[[], None]) -> None:
        """One that is set already goes on running."""
        self._timer = self._timer or loop.call_later(seconds, does)

    def off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = APIError(503, "the server is at work on as many connections as it takes", code="overloaded", retry_after_s=1)
    answer = response_of(error, path_of(scope))
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)


class Connection(H11Protocol):
    """uvicorn's own, with an end to its patience, and refusals of malformed heads in the form of all others."""

    patience_s, reading_s = _PATIENCE_S, _READING_S

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # uvicorn would refuse requests of connections that were taken long ago, and in plain text
        self._most, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._owing, self._unread = _Alarm(), _Alarm()
        self._answered_s = 0.0
        super().connection_made(transport)
        self._settle()
        self._make_room()

    def _make_room(self) -> None:
        """Where there are too many connections, close the one that has been idle longest; if none is idle, refuse this one."""
        if self._most is None or len(self.connections) <= self._most:
            return
        idle = [one for one in self.connections if isinstance(one, Connection) and one.is_idle]
        if idle:
            min(idle, key=lambda one: one._answered_s).transport.close()
        else:
            _log.warning("a connection is refused: %d are at work", self._most)
            self.app = _refuse

    @property
    def is_idle(self) -> bool:
        """Whether it was answered, and has asked for nothing since."""
        return self.cycle is not None and self.cycle.response_complete and not self._owed() and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        self._answered_s = self.loop.time()
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._unread.off()
        super().resume_writing()

    def _watch(self) -> None:
        self._unread.set(self.loop, self.reading_s, partial(self._look, self.transport.get_write_buffer_size()))

    def _look(self, unread_bytes: int) -> None:
        """unread_bytes: when it was looked last; what was answered at once may take long to read."""
        self._unread.off()
        if self.transport.get_write_buffer_size() < unread_bytes:
            self._watch()
        else:
            # whoever answers would wait for ever, and the engine go on for nobody
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owing.off()
        self._unread.off()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        """To no other protocol; uvicorn would warn of each client that offers to speak HTTP/2."""
        return False

    def _settle(self) -> None:
        """Run the alarm while the client owes something; drops that come in do not stop it."""
        if self._owed() and not self.transport.is_closing():
            self._owing.set(self.loop, self.patience_s, self.transport.close)
        else:
            self._owing.off()

    def _owed(self) -> bool:
        if self.cycle is None:
            return True
        if not self.cycle.response_complete:
            return False
        return self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])

    def send_400_response(self, msg: str) -> None:
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        status = hint if hint in (400, 431, 501) else 400
        sentence = "the head of the request is too large" if status == 431 else "this is not a request in HTTP/1.1"
        if self.cycle is not None and not self.cycle.response_complete:
            # garbage behind a request that is being answered: there is no place for an answer of its own
            self.transport.close()
            return
        body = json.dumps(APIError(status, sentence).body).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def most_connections() -> int:
    """At once, within the files that this process may open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = _MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(files - _FILES_KEPT, _MOST_CONNECTIONS)
    return max(room, 1)


def uvicorn_options(settings: Settings) -> dict[str, Any]:
    """Arguments of `uvicorn.Config`."""
    return {
        "root_path": settings.root_path,
        "http": Connection,
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # nothing here depends on who a proxy says the client is
        "limit_concurrency": most_connections(),
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": max(round(settings.drain_timeout_s), 1),
        "h11_max_incomplete_event_size": settings.max_header_bytes,
    }
