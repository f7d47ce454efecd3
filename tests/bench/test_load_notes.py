"""Notes of `paceline bench serve` about repeated prompts, and its limit of connections."""

from __future__ import annotations

import resource

from commandline import run
from load_server import FakeServer, serving


def test_repeated_prompts_are_told_of_over_all_loads_bodies_and_runs(monkeypatch, capsys) -> None:
    def said(url: str, *arguments: str) -> str:
        run(monkeypatch, "bench", "serve", "--url", url, "--tasks", "e2e", "--requests", "2", *arguments)
        return capsys.readouterr().out

    with serving(FakeServer()) as url:
        assert "different prompts" not in said(url)
        assert "2 different prompts for 4 requests" in said(url, "--concurrency", "1,2")
        assert "2 different prompts for 4 requests" in said(url, "--against", '{"fake": {"tokens": 2}}')
        assert "different prompts" not in said(url, "--concurrency", "1,2", "--salt")
        found = said(url, "--find-rate", "--rate", "9000", "--slo", "ttft=60")
        assert "2 different prompts for 4 requests" in found, "9000/s and the highest rate allowed"


def test_a_generator_may_have_as_many_connections_as_the_system_grants(monkeypatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with serving(FakeServer()) as url:
            assert run(monkeypatch, "bench", "serve", "--url", url, "--tasks", "e2e", "--requests", "1") == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
