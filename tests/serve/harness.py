"""A real server in a separate process, and clients for it. From a test: `from serve.harness import running`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx

START_S = 60.0


class Served:
    """A running server. url: its address. process: the server itself; the engine is its child process."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.client = httpx.Client(base_url=url, timeout=60.0)

    def complete(self, **fields: Any) -> dict[str, Any]:
        """The answer of /v1/completions, greedy unless overridden. Fails on any status but 200."""
        answer = self.client.post("/v1/completions", json={"temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def streamed(self, path: str = "/v1/completions", **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream, which must end with [DONE]."""
        with self.client.stream("POST", path, json={"temperature": 0, "stream": True, **fields}) as answer:
            assert answer.status_code == 200, answer.read()
            return chunks(line for line in answer.iter_lines() if line)

    def metric(self, name: str) -> float:
        """The value of one sample of /metrics, whatever its labels; summed over several."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + " ", name + "{"))]
        assert found, f"no metric {name}"
        return sum(found)

    def wait_for(self, name: str, value: float, seconds: float) -> None:
        """Wait until a metric has a value; fails after `seconds`."""
        until = time.monotonic() + seconds
        while (now := self.metric(name)) != value:
            assert time.monotonic() < until, f"{name} is {now}, not {value}, after {seconds} s"
            time.sleep(0.05)

    @property
    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (pid,) = map(int, children)
        return pid

    def stop(self, seconds: float = 30.0) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def chunks(lines: Iterator[str]) -> list[dict[str, Any]]:
    """The data of a stream's lines; the last must be [DONE]."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]", data[-1:]
    return [json.loads(one) for one in data[:-1]]


def text_of(found: list[dict[str, Any]]) -> str:
    """The text of a completions stream."""
    return "".join(choice["text"] for chunk in found for choice in chunk["choices"])


@contextmanager
def running(*arguments: str, **variables: str) -> Iterator[Served]:
    """`paceline serve` on a free port, always stopped at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "500", **variables},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http" in line, f"the server did not start: {line!r}"
        served = Served(process, line.split(" at ")[1].split(": ")[0])
        with served.client:
            yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
