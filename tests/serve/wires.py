"""An application behind a real port in this process, and raw bytes sent to it."""

from __future__ import annotations

import resource
import socket
import time
from threading import Thread
from typing import Any

import uvicorn

from paceline.serve.connections import Connection, uvicorn_options
from paceline.serve.settings import Settings


class Wire:
    """patience_s: how long connections wait for the client to send or to read."""

    def __init__(self, app: Any, settings: Settings, patience_s: float, most_connections: int | None = None) -> None:
        class Hasty(Connection):
            pass

        Hasty.patience_s = Hasty.reading_s = patience_s
        options = uvicorn_options(settings) | {"port": 0, "http": Hasty, "lifespan": "off"}
        options |= {"limit_concurrency": most_connections} if most_connections else {}
        self._server = uvicorn.Server(uvicorn.Config(app, **options))
        self._thread = Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Wire:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def told(self, *parts: bytes, drip: bytes = b"", pause_s: float = 0.0, then: bytes = b"") -> bytes:
        """Everything received until the other side closes, or is silent for a while. drip: sent ten times a second.

        `closed` is set to whether the other side closed.
        """
        self.closed = False
        with socket.create_connection(("127.0.0.1", self.port), 5) as line:
            answer = b""
            try:
                for part in parts:
                    line.sendall(part)
                line.settimeout(0.1 if drip else 0.8)
                if then:
                    time.sleep(pause_s)
                    line.sendall(then)
                for _ in range(20):
                    try:
                        if not (read := line.recv(65536)):
                            self.closed = True
                            break
                        answer += read
                    except TimeoutError:
                        if not drip:
                            break
                        line.sendall(drip)
            except (ConnectionResetError, BrokenPipeError):
                self.closed = True
            return answer

    def peak_bytes(self) -> int:
        """The highest memory use of this process so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
