"""The engine's process, replaced by a small program: starts that fail, and requests that the pipe cannot carry."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.logprobs import TokenLogprobs
from paceline.params import SamplingParams
from paceline.serve import process
from paceline.serve.asking import Ask, Delta, Ending
from paceline.serve.errors import APIError
from paceline.serve.pipe import Line, News, Ready, parted
from paceline.serve.process import EngineError, EngineProcess

READY = Ready(200_000, 10, (), (), {}, "target", "policy", "verifier")
LINE = Line(News).write(News(ready=READY)).decode()
PROGRAM = f"import sys; sys.stdin.readline(); print({LINE!r}, end='', flush=True); sys.stdin.read()"
"""It reports ready, and ends when its input closes."""
spawned = asyncio.create_subprocess_exec


class Starts:
    """Replaces asyncio's function: raises the errors in turn; None is a successful start."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors, self.count = list(errors), 0

    async def __call__(self, *_: Any, **options: Any) -> asyncio.subprocess.Process:
        self.count += 1
        if self._errors and (error := self._errors.pop(0)) is not None:
            raise error
        return await spawned(sys.executable, "-c", PROGRAM, **options)


class Listening:
    def __init__(self) -> None:
        self.errors: list[APIError] = []
        self.deltas: list[Delta] = []

    def brought(self, delta: Delta) -> None:
        self.deltas.append(delta)

    def failed(self, error: APIError) -> None:
        self.errors.append(error)


def run(monkeypatch: pytest.MonkeyPatch, starts: Starts, scene: Callable[[EngineProcess], Awaitable[None]]) -> None:
    monkeypatch.setattr(asyncio, "create_subprocess_exec", starts)
    monkeypatch.setattr(process, "_BACKOFF_S", (0.0, 0.01, 0.02))

    async def whole() -> None:
        engine = EngineProcess(b"{}", lambda stats: None, lambda: None)
        try:
            await asyncio.wait_for(scene(engine), 20)
        finally:
            await engine.close()

    asyncio.run(whole())


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOMEM, "no memory"), BlockingIOError(errno.EAGAIN, "no process"), RuntimeError("can't start new thread")],
)
def test_starts_that_the_machine_refuses_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    starts = Starts(None, error, error, error)

    async def scene(engine: EngineProcess) -> None:
        await engine.start()
        assert engine.pid is not None
        listening, first = Listening(), engine.pid
        engine.ask(Ask((1,), SamplingParams()), listening)
        os.kill(first, signal.SIGKILL)
        while engine.ready is None or engine.pid == first:
            await asyncio.sleep(0.01)
        assert [one.code for one in listening.errors] == ["engine_failed"]
        assert starts.count == 5

    run(monkeypatch, starts, scene)
    assert sum("cannot be started" in record.message for record in caplog.records) == 3


def test_an_engine_that_stops_for_good_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(engine: EngineProcess) -> None:
        await engine.start()
        listening, first = Listening(), engine.pid
        # an idle engine may be silent
        await asyncio.sleep(0.3)
        engine.ask(Ask((1,), SamplingParams()), listening)
        assert not engine.given_up()
        await asyncio.sleep(0.1)
        assert (engine.pid, listening.errors) == (first, [])
        await asyncio.sleep(0.2)
        assert engine.given_up()
        while engine.ready is None or engine.pid == first:
            await asyncio.sleep(0.01)
        assert [one.code for one in listening.errors] == ["engine_failed"]

    monkeypatch.setattr(process, "_SILENT_S", 0.25)
    run(monkeypatch, Starts(), scene)


def test_a_first_start_that_the_machine_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(engine: EngineProcess) -> None:
        with pytest.raises(EngineError, match="no memory"):
            await engine.start()

    run(monkeypatch, Starts(OSError(errno.ENOMEM, "no memory")), scene)


def test_a_refusal_for_now_says_when_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Line(News).write(News(refused={1: "never"}, busy={2: "not now"})).decode()
    answers = f"[sys.stdin.readline() for _ in range(2)]; print({told!r}, end='', flush=True)"
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", PROGRAM.replace("sys.stdin.read()", f"{answers}; sys.stdin.read()"))

    async def scene(engine: EngineProcess) -> None:
        await engine.start()
        listening = Listening()
        for _ in range(2):
            engine.ask(Ask((1,), SamplingParams()), listening)
        while engine.load:
            await asyncio.sleep(0.01)
        assert [str(error) for error in listening.errors] == ["never", "not now"]
        assert [(error.status, error.retry_after_s) for error in listening.errors] == [(400, None), (503, 1)]

    run(monkeypatch, Starts(), scene)


def test_what_the_pipe_cannot_carry_is_refused_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(engine: EngineProcess) -> None:
        await engine.start()
        listening = Listening()
        with pytest.raises(APIError, match="this prompt has 120000") as refused:
            engine.ask(Ask((1,) * 120_000, SamplingParams(prompt_logprobs=20)), listening)
        assert (refused.value.status, engine.load) == (400, 0)
        engine.ask(Ask((1,) * 120_000, SamplingParams()), listening)
        assert engine.load == 1

    run(monkeypatch, Starts(), scene)


def test_other_work_is_done_between_the_parts_of_a_long_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = (None, *(TokenLogprobs(token, -0.5, 1) for token in range(2000)))
    whole = Delta(text="a", tokens=(3,), prompt_logprobs=told, ending=Ending("stop", 0))
    news = [*parted(News(deltas={1: whole, 2: whole})), News(deltas={3: Delta(ending=Ending("stop", 0))})]
    told_in = tmp_path / "news"
    told_in.write_bytes(b"".join(map(Line(News).write, news)))
    answers = f"[sys.stdin.readline() for _ in range(4)]; sys.stdout.write(open({str(told_in)!r}).read()); sys.stdout.flush()"
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", PROGRAM.replace("sys.stdin.read()", f"{answers}; sys.stdin.read()"))
    turns, read_at = 0, []

    async def scene(engine: EngineProcess) -> None:
        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        read = engine._news.read

        def noted(line: bytes) -> News:
            found = read(line)
            if found.prompts:
                read_at.append(turns)
            return found

        await engine.start()
        monkeypatch.setattr(engine._news, "read", noted)
        work = asyncio.create_task(other())
        one, gone, last = Listening(), Listening(), Listening()
        numbers = [engine.ask(Ask((1,), SamplingParams(prompt_logprobs=0)), listening) for listening in (one, gone, last)]
        engine.end(numbers[1])
        while not last.deltas:
            await asyncio.sleep(0.01)
        work.cancel()
        assert one.deltas == [whole]
        assert gone.deltas == []
        assert engine._prompts == {}

    run(monkeypatch, Starts(), scene)
    assert len(read_at) == len(news) - 2 > 10
    assert len(set(read_at)) == len(read_at), "no two of them were read in one turn of the loop"
