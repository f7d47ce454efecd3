"""The service between routes and engine, over a fake engine: limits of the queue, requests that time out, and the times at which
measurements are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, cast

import pytest

from paceline.models.embedded import DEFAULT, WEIGHTS_FOLDER
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.serve import recording, service
from paceline.serve.asking import Ask, Delta, Drafted, Ending, StepTrace
from paceline.serve.errors import APIError
from paceline.serve.meter import Meter
from paceline.serve.pipe import Ready
from paceline.serve.process import EngineProcess, Listener
from paceline.serve.recording import Record
from paceline.serve.routes import chat, completions, messages, responses
from paceline.serve.service import EngineService, _joined
from paceline.serve.settings import Settings
from paceline.serve.tools import planned
from serve.calls import LOOK
from serve.fakes import FakeService
from serve.front import HELLO, client_of

READY = Ready(512, 10, (), (), {}, "target", "policy", "verifier")
ASK = Ask((1,), SamplingParams(seed=7))
LATE = Delta(ending=Ending("timeout", 7))
LOOK_TOOL = {"type": "function", "function": {name: LOOK[name] for name in ("name", "description", "parameters")}}


class SlowEngine:
    """Sends the last deltas `step_s` seconds after `expire`; never, for None. first: sent at once by `ask`."""

    load = 0

    def __init__(self, step_s: float | None, *lasts: Delta, first: tuple[Delta, ...] = ()) -> None:
        self._step_s, self._first, self.expired, self.asked = step_s, first, 0, 0
        self._lasts = lasts or (Delta("so far", (1,), ending=Ending("timeout", 7)),)
        self._listeners = list[Listener]()

    def ask(self, ask: Ask, listener: Listener) -> int:
        self._listeners.append(listener)
        for delta in self._first:
            listener.brought(delta)
        return len(self._listeners)

    def expire(self, number: int) -> None:
        self.expired += 1
        if self._step_s is not None:
            told = self._listeners[number - 1].brought, self._lasts[number - 1]
            asyncio.get_running_loop().call_later(self._step_s * number, *told)

    def end(self, number: int) -> None: ...

    def given_up(self) -> bool:
        self.asked += 1
        return self._step_s is None and self.asked == 3


def service_of(engine: object, meter: Meter | None = None, **settings: Any) -> EngineService:
    tokenizer = Tokenizer(WEIGHTS_FOLDER / DEFAULT)
    return EngineService(cast("EngineProcess", engine), tokenizer, Settings(**settings), READY, meter or Meter())


def answer(
    engine: SlowEngine,
    monkeypatch: pytest.MonkeyPatch,
    choices: int = 1,
    request_timeout_s: float = 0.02,
    meanwhile: Callable[[EngineService], None] = lambda served: None,
) -> list[tuple[int, Delta]]:
    monkeypatch.setattr(service, "_GRACE_S", 0.02)
    monkeypatch.setattr(service, "_PARTING_S", 0.05)
    served = service_of(engine, request_timeout_s=request_timeout_s)

    async def whole() -> list[tuple[int, Delta]]:
        asyncio.get_running_loop().call_later(0.05, meanwhile, served)
        return [one async for one in served.submit([ASK] * choices)]

    return asyncio.run(asyncio.wait_for(whole(), 20))


def test_an_answer_that_times_out_amid_a_long_step_has_what_came_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SlowEngine(0.2)
    assert [delta.text for _, delta in answer(engine, monkeypatch)] == ["so far"]
    assert engine.expired == 1
    assert engine.asked > 1


def test_a_silent_engine_is_asked_about_until_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SlowEngine(None)
    with pytest.raises(APIError) as refused:
        answer(engine, monkeypatch)
    assert (refused.value.status, refused.value.code, engine.asked) == (503, "engine_silent", 3)


@pytest.mark.parametrize("choices", [1, 3])
def test_a_request_that_never_had_a_turn_is_refused(monkeypatch: pytest.MonkeyPatch, choices: int) -> None:
    with pytest.raises(APIError, match="up before it had its turn") as refused:
        answer(SlowEngine(0.01, *[LATE] * choices), monkeypatch, choices)
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (503, "timed_out", 5)


def test_a_choice_without_a_turn_is_empty_beside_one_that_had_one(monkeypatch: pytest.MonkeyPatch) -> None:
    last = Delta("so far", (1,), ending=Ending("timeout", 7))
    for lasts in ((LATE, last), (last, LATE)):
        told = answer(SlowEngine(0.02, *lasts), monkeypatch, 2)
        assert sorted(told, key=lambda one: one[0]) == list(enumerate(lasts))


def test_a_server_that_ends_does_not_wait_for_a_long_step(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Delta("so far", (1,))
    engine = SlowEngine(None, first=(first,))
    told = answer(engine, monkeypatch, 2, 60.0, EngineService.expire_all)
    assert told == [(0, first), (1, first), (0, LATE), (1, LATE)]
    assert engine.expired == 2
    with pytest.raises(APIError, match="shutting down") as refused:
        answer(SlowEngine(None), monkeypatch, 1, 60.0, EngineService.expire_all)
    assert (refused.value.status, refused.value.code) == (503, "shutting_down")


def test_a_server_that_ends_waits_for_a_short_step(monkeypatch: pytest.MonkeyPatch) -> None:
    told = answer(SlowEngine(0.01), monkeypatch, 1, 60.0, EngineService.expire_all)
    assert [(delta.text, delta.ending) for _, delta in told] == [("so far", Ending("timeout", 7))]


def test_times_are_measured_when_tokens_arrive_and_not_when_they_are_read() -> None:
    """Two steps arrive while the client is still handling the first delta, and are read as one."""
    meter, engine = Meter(), SlowEngine(None, first=(Delta("a", (1,)),))
    served = service_of(engine, meter)

    async def read_slowly() -> None:
        deltas = served.submit([ASK])
        await anext(deltas)
        (listener,) = engine._listeners
        for ending in (None, Ending("stop", 7)):
            await asyncio.sleep(0.1)
            listener.brought(Delta("b", (2,), ending=ending))
        assert meter.ended["stop"] == 1
        await asyncio.sleep(0.5)
        assert [delta.tokens async for _, delta in deltas] == [(2, 2)]

    asyncio.run(read_slowly())
    assert sum(meter.token_gap_s.counts) == 2
    assert 0.15 < meter.token_gap_s.sum <= meter.whole_s.sum < 0.45


class Held:
    """A listener that occupies a place. key: of the client."""

    def __init__(self, key: int | None) -> None:
        self.key = key

    def brought(self, delta: Delta) -> None: ...

    def failed(self, error: APIError) -> None: ...


@contextmanager
def shown(key: int | None) -> Iterator[None]:
    """A request with this API key."""
    token = recording._current.set(Record(key=key))
    try:
        yield
    finally:
        recording._current.reset(token)


def taken(served: EngineService, engine: EngineProcess, key: int | None, most: int, choices: int = 1) -> int:
    """How many requests are accepted, one after another, from a client that sends the next before any has ended."""
    for count in range(most):
        with shown(key):
            try:
                served.check_room(choices)
            except APIError:
                return count
        for _ in range(choices):
            engine.ask(ASK, Held(key))
    return most


def test_the_crowd_of_one_key_locks_no_other_out() -> None:
    engine = EngineProcess(b"{}", lambda stats: None, lambda: None)
    engine.ready = READY
    served = service_of(engine, batch=2, queue=4)
    assert taken(served, engine, 0, 99) == 6
    assert taken(served, engine, 1, 99) == 2
    with shown(0), pytest.raises(APIError) as refused:
        served.check_room(1)
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "overloaded", 1)
    assert taken(served, engine, 2, 99) == 2
    # twice the limit is the maximum, however many keys there are
    assert taken(served, engine, 3, 99, choices=3) == 0
    assert sum(taken(served, engine, key, 99) for key in range(4, 99)) == 2
    assert engine.load == 12


def test_without_keys_all_requests_share_one_queue_limit() -> None:
    engine = EngineProcess(b"{}", lambda stats: None, lambda: None)
    engine.ready = READY
    served = service_of(engine, batch=2, queue=4)
    assert taken(served, engine, None, 1) == 1
    assert taken(served, engine, None, 1, choices=8) == 0
    assert taken(served, engine, None, 99) == 5


ROUTES = [
    (completions, "/v1/completions", {"prompt": ["a", "b"], "n": 3}, 6),
    (chat, "/v1/chat/completions", {"messages": HELLO, "n": 2}, 2),
    (responses, "/v1/responses", {"input": "hi"}, 1),
    (messages, "/v1/messages", {"messages": HELLO, "max_tokens": 3}, 1),
]


@pytest.mark.parametrize(("module", "path", "body", "choices"), ROUTES, ids=[path for _, path, _, _ in ROUTES])
def test_a_full_server_reads_no_text(module: Any, path: str, body: dict[str, Any], choices: int) -> None:
    fake = FakeService(full=APIError(429, "the server is busy", retry_after_s=1))
    grammar = {"structured_outputs": {"regex": "a"}}
    answer = client_of(fake, module.router).post(path, json={**body, **grammar})
    assert (answer.status_code, answer.headers["retry-after"], fake.rooms) == (429, "1", [choices])
    assert not fake.encoded
    assert not fake.grammars
    assert not fake.asked


def test_markers_of_tools_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    served, seen = service_of(SlowEngine(None)), list[str]()

    async def encode(text: str, add_special: bool = True) -> list[int]:
        seen.append(text)
        return [1, 2]

    monkeypatch.setattr(served, "encode", encode)

    async def thrice() -> None:
        for _ in range(3):
            await planned(served, [LOOK_TOOL])

    asyncio.run(thrice())
    assert seen
    assert len(seen) == len(set(seen))


def test_a_request_that_is_left_is_ended_in_the_engine() -> None:
    ended: list[int] = []

    class Noting(SlowEngine):
        def end(self, number: int) -> None:
            ended.append(number)

    served = service_of(Noting(None, first=(Delta("a", (1,)),)))

    async def left() -> None:
        async with aclosing(served.submit([ASK] * 2)) as deltas:
            await anext(deltas)

    asyncio.run(left())
    assert ended == [1, 2]
    assert not served._inboxes


def test_what_is_read_at_once_is_all_that_came() -> None:
    step = StepTrace(1, 0, 0, Drafted((), (), ()), 0.0, 0.0, 0.0, 1)
    first = Delta("a", (1,), ("ngram",), ("x",), ("p",), (step,))
    second = Delta("b", (2,), ("",), ("y",), None, (step,), Ending("stop", 7))
    assert _joined(first, second) == Delta("ab", (1, 2), ("ngram", ""), ("x", "y"), ("p",), (step, step), Ending("stop", 7))
