"""The server's connection limit: as many as it may have open files, with a warning if more requests could be in flight."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import open_files
from paceline.open_files import raise_limit
from paceline.serve.connections import most_connections, uvicorn_options
from paceline.serve.settings import Settings
from serve.harness import running

FEW = 256


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit of open files, in a process whose soft limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= FEW:
        pytest.skip("this machine grants few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_are_as_many_as_files_may_be_open(hard: int) -> None:
    assert uvicorn_options(Settings())["limit_concurrency"] == most_connections() == FEW - 64
    raise_limit()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert soft == (open_files._OPEN_MAX if hard == resource.RLIM_INFINITY else hard)
    assert uvicorn_options(Settings())["limit_concurrency"] == min(soft - 64, 4096)
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process")
def test_a_server_raises_its_limit_and_says_what_it_cannot_take(hard: int, capfd: pytest.CaptureFixture[str]) -> None:
    with running("--queue", "5000", "--batch", "4") as served:
        limits = Path(f"/proc/{served.process.pid}/limits").read_text().splitlines()
        (files,) = (line.split() for line in limits if line.startswith("Max open files"))
        assert files[3:5] == [str(hard)] * 2
    warned = [line for line in capfd.readouterr().err.splitlines() if "connections" in line]
    assert len(warned) == 1
    most = min(hard - 64, 4096)
    assert f"5004 requests may run and wait by --batch and --queue, but {most} connections are taken at most" in warned[0]
