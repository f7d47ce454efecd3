"""Recordings as CUDA graphs, on a simulated device: what is called, and what is reported on failure."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.clock import now
from paceline.models.recording import RecordingInParts, captured


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated device: a recording with an error inside fails at its end, without resetting the current stream."""

    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        before = torch.cuda.current_stream()
        torch.cuda.set_stream(torch.cuda.Stream())
        try:
            yield
            torch.cuda.set_stream(before)
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture") from None

    current = [SimpleNamespace(wait_stream=lambda other: None)]
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", current.append)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)


@pytest.mark.usefixtures("graphs")
def test_garbage_collection_is_off_during_a_recording() -> None:
    seen = list[bool]()
    captured(lambda: seen.append(gc.isenabled()), never_waits=True)
    assert seen == [True, False]
    assert gc.isenabled()


@pytest.mark.usefixtures("graphs")
def test_the_first_error_of_a_failed_recording_is_raised() -> None:
    calls = list[int]()

    def fails() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")

    own = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="not permitted"):
        captured(fails, never_waits=True)
    assert gc.isenabled()
    assert torch.cuda.current_stream() is own


@pytest.mark.usefixtures("graphs")
def test_steps_are_not_judged_by_what_a_recording_takes() -> None:
    began, before = now(), perf_counter()
    captured(lambda: sleep(0.02), never_waits=True)
    took, judged = perf_counter() - before, now() - began
    assert took >= 0.04
    assert judged < took - 0.04 + 1e-6


def test_as_many_parts_run_as_are_asked_for_one_behind_the_other() -> None:
    ran = list[int]()

    def run(tables: str, part: int) -> str:
        ran.append(part)
        return f"{tables} {part}"

    recording = RecordingInParts("tables", run, torch.device("cpu"), None)
    assert [recording(count) for count in (2, 3, 1)] == ["tables 1", "tables 2", "tables 0"]
    assert ran == [0, 1, 0, 1, 2, 0]
