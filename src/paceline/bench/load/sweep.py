"""Sweep: a whole run of `paceline bench serve`: queries the server, warms up, measures every load, and makes the record."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence as Many
from contextlib import AbstractContextManager
from time import perf_counter, process_time
from typing import Any

import httpx2

from paceline.bench.errors import BenchError
from paceline.bench.load.client import Client, connected
from paceline.bench.load.level import BODIES, Level
from paceline.bench.load.outcome import Outcome
from paceline.bench.load.prompts import Asked, lengthened, repeated, scale_to, texts
from paceline.bench.load.rate_search import highest_rate
from paceline.bench.load.server import Server, count_tokens, look
from paceline.bench.load.settings import ENDPOINTS, HIGHEST_RATE, Load, Settings
from paceline.bench.origin import origin
from paceline.open_files import raise_limit

Watch = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Shows progress of a task with a number of requests; yields a function to call as each of them ends."""
_ALONE = 0.5
"""Mean requests in flight, if all took as long as the slowest one, below which requests hardly overlap."""
_CHARACTERS = 4.0
"""Per token, if the server cannot tell; a rough value for English."""


def run(settings: Settings, argv: Many[str], watch: Watch) -> dict[str, Any]:
    """Measure, and return the record. argv: the command line; API keys are removed from it. Raises BenchError."""
    raise_limit()
    return asyncio.run(_Run(settings, watch).record(argv))


class _Run:
    def __init__(self, settings: Settings, watch: Watch) -> None:
        self._settings, self._watch = settings, watch
        self._prompts = texts(settings.tasks)
        # servers without usage in streams may refuse requests for it
        self._usage = True

    async def record(self, argv: Many[str]) -> dict[str, Any]:
        settings = self._settings
        async with connected(settings.url, settings.api_key, settings.timeout_s) as http:
            server = await look(http, settings.url, settings.model)
            client = Client(http, ENDPOINTS[settings.endpoint], settings.timeout_s, settings.retry)
            warmed = await self._warmed(client, server)
            asked, scale = await self._asked(http, server, warmed)
            level = Level(
                client,
                settings,
                asked,
                lambda one, name: self._words(server, one, name),
                lambda untold: count_tokens(http, server.model, untold),
            )
            began, busy = perf_counter(), process_time()
            levels, found = await self._levels(level)
            wall_s, busy_s = perf_counter() - began, process_time() - busy
        return {
            "kind": "paceline bench serve",
            **origin(),
            "argv": _struck(argv),
            "server": {
                "url": server.url,
                "model": server.model,
                "context_tokens": server.context_tokens,
                "version": server.version,
                "speculation": dict(server.speculation),
            },
            "settings": self._kept(asked, scale),
            "levels": levels,
            "find_rate": found,
            "generator": {"wall_s": wall_s, "processor_share": busy_s / wall_s},
        }

    async def _warmed(self, client: Client, server: Server) -> list[Outcome]:
        """Warm-up requests, which are not measured. Raises BenchError if the server does not answer them."""
        names = BODIES if self._settings.against is not None else BODIES[:1]
        asks = repeated(self._prompts, self._settings.warmup, self._settings.max_tokens)
        outcomes: list[Outcome] = []
        with self._watch("warming up", len(asks) * len(names)) as ended:
            for asked in asks:
                for name in names:
                    outcome = await self._tried(client, server, asked, name)
                    if not outcome.answered and not outcome.refused:
                        said = f", {outcome.message}" if outcome.message else ""
                        what = f"status {outcome.error}" if str(outcome.error).isdecimal() else outcome.error
                        raise BenchError(f"{server.url} does not answer the first request ({name}): {what}{said}")
                    outcomes.append(outcome)
                    ended()
        return outcomes

    async def _tried(self, client: Client, server: Server, asked: Asked, name: str) -> Outcome:
        outcome = await client.ask(self._words(server, asked, name), asked.index, perf_counter(), perf_counter())
        if self._usage and outcome.error in ("400", "422"):
            self._usage = False
            without = await client.ask(self._words(server, asked, name), asked.index, perf_counter(), perf_counter())
            if without.answered:
                return without
            self._usage = True
        return outcome

    async def _asked(self, http: httpx2.AsyncClient, server: Server, warmed: list[Outcome]) -> tuple[list[Asked], float | None]:
        """The requests, and the factor on a trace's lengths."""
        settings = self._settings
        if not settings.trace:
            return repeated(self._prompts, settings.requests, settings.max_tokens), None
        scale = settings.scale or scale_to(settings.trace, server.context_tokens)
        examples = [example for task in settings.tasks for example in task.examples]
        lengths = [(len(self._prompts[o.index % len(self._prompts)]), o.prompt_tokens) for o in warmed if o.prompt_tokens]
        counts = await count_tokens(http, server.model, ["\n\n".join([*examples, *self._prompts])])
        if counts and counts[0]:
            characters = len("\n\n".join([*examples, *self._prompts])) / counts[0]
        elif lengths:
            characters = sum(length for length, _ in lengths) / sum(tokens for _, tokens in lengths)
        else:
            characters = _CHARACTERS
        return lengthened(settings.trace, self._prompts, examples, scale, characters), scale

    def _words(self, server: Server, asked: Asked, name: str) -> dict[str, Any]:
        """The JSON body of a request."""
        settings = self._settings
        chat = settings.endpoint == "chat"
        return {
            "model": server.model,
            **({"messages": [{"role": "user", "content": asked.prompt}]} if chat else {"prompt": asked.prompt}),
            "max_tokens": asked.max_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed + asked.index,
            "stream": True,
            **({"stream_options": {"include_usage": True}} if self._usage else {}),
            **({"cache_salt": secrets.token_hex(8)} if settings.salted else {}),
            **(settings.extra if name == BODIES[0] else settings.against or {}),
        }

    async def _levels(self, level: Level) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        settings = self._settings
        levels: list[dict[str, Any]] = []

        async def measure(load: Load) -> dict[str, Any]:
            with self._watch(str(load), len(level.asked) * (2 if settings.against is not None else 1)) as ended:
                levels.append(await level.measure(load, ended))
            return levels[-1]["bodies"][BODIES[0]]

        if not settings.find_rate:
            for load in settings.loads:
                await measure(load)
            return levels, None

        async def share_at(rate: float) -> float:
            return (await measure(Load("rate", rate)))["goodput"]["share"]

        def alone(rate: float) -> bool:
            slowest = levels[-1]["bodies"][BODIES[0]]["e2e_s"]
            return slowest is None or rate * slowest["max"] < _ALONE

        found = await highest_rate(share_at, settings.loads[0].value, settings.needed_share, HIGHEST_RATE, alone)
        return levels, {
            "objective": str(settings.objective),
            "needed_share": settings.needed_share,
            "held_per_s": found.held,
            "failed_per_s": found.failed,
            "runs": found.runs,
            "requests_per_run": len(level.asked),
        }

    def _kept(self, asked: Many[Asked], scale: float | None) -> dict[str, Any]:
        settings = self._settings
        return {
            "endpoint": settings.endpoint,
            "tasks": [task.name for task in settings.tasks],
            "requests": settings.requests,
            "distinct_prompts": len({one.prompt for one in asked}),
            "most_tokens": sum(one.max_tokens for one in asked),
            "max_tokens": None if settings.trace else settings.max_tokens,
            "trace_scale": scale,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "objective": settings.objective.limits_s if settings.objective is not None else None,
            "body": settings.extra,
            "against": settings.against,
            "warmup": settings.warmup,
            "timeout_s": settings.timeout_s,
            "retry": settings.retry,
            "salted": settings.salted,
        }


def _struck(argv: Many[str]) -> list[str]:
    """The command line without its API key."""
    kept: list[str] = []
    for word in argv:
        if kept and kept[-1] == "--api-key":
            kept.append("...")
        else:
            kept.append("--api-key=..." if word.startswith("--api-key=") else word)
    return kept
