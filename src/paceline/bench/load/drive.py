"""Drive: sends many requests to a server, in a closed loop or at their due times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence as Many
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from paceline.bench.load.outcome import Outcome


class Asker(Protocol):
    """Sends one request; see Client.ask."""

    async def ask(self, body: Mapping[str, Any], index: int, due: float, began: float) -> Outcome: ...


@dataclass(frozen=True)
class Block:
    """Requests measured together. wall_s: from the first one due to the end of the last."""

    outcomes: tuple[Outcome, ...]
    wall_s: float


async def closed_loop(
    asker: Asker, bodies: Many[tuple[int, Mapping[str, Any]]], concurrency: int, ended: Callable[[], None]
) -> Block:
    """Keep `concurrency` requests in flight: send a new one as soon as another ends. bodies: with the index of each request."""
    began = perf_counter()
    waiting = iter(bodies)
    outcomes: list[Outcome] = []

    async def work(waiting: Iterator[tuple[int, Mapping[str, Any]]]) -> None:
        for index, body in waiting:
            outcomes.append(await asker.ask(body, index, perf_counter(), began))
            ended()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(concurrency, len(bodies))):
            tasks.create_task(work(waiting))
    return Block(tuple(sorted(outcomes, key=lambda outcome: outcome.index)), perf_counter() - began)


async def open_loop(
    asker: Asker, bodies: Many[tuple[int, Mapping[str, Any]]], due_s: Many[float], ended: Callable[[], None]
) -> Block:
    """Send each request when it is due, without waiting for earlier ones. due_s: ascending, in seconds from now."""
    began = perf_counter()
    outcomes: list[Outcome] = []

    async def send(index: int, body: Mapping[str, Any], due: float) -> None:
        outcomes.append(await asker.ask(body, index, due, began))
        ended()

    async with asyncio.TaskGroup() as tasks:
        for (index, body), moment_s in zip(bodies, due_s, strict=True):
            due = began + moment_s
            # sleep even when late: requests already sent need time in the event loop
            await asyncio.sleep(max(0.0, due - perf_counter()))
            tasks.create_task(send(index, body, due))
    return Block(tuple(sorted(outcomes, key=lambda outcome: outcome.index)), perf_counter() - began - due_s[0])
