"""Settings: the options of one run of `paceline bench serve`, checked before any work begins."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import httpx2

from paceline.bench.errors import BenchError
from paceline.bench.load.arrivals import Traced, read_trace
from paceline.bench.load.objective import Objective
from paceline.bench.tasks import Task, load_tasks

ENDPOINTS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
MOST_REQUESTS, MOST_IN_FLIGHT, HIGHEST_RATE, MOST_TOKENS, LONGEST_S, HOTTEST = 100_000, 4096, 10_000.0, 1 << 20, 86_400.0, 100.0
_OURS = ("stream", "prompt", "messages", "n")
"""Fields that an additional body must not set: the generator sets them, or could not read the answer."""


@dataclass(frozen=True)
class Load:
    """How requests arrive. kind, and meaning of value: "concurrency" (closed loop), "rate" (per second, Poisson), "trace" (its
    speed-up)."""

    kind: str
    value: float

    def __str__(self) -> str:
        return {
            "concurrency": f"{self.value:g} at once",
            "rate": f"{self.value:g}/s",
            "trace": "trace" if self.value == 1 else f"trace {self.value:g}x",
        }[self.kind]


@dataclass(frozen=True)
class Settings:
    """loads: measured one after another. block: requests of one body before the other's turn; None for `turn`'s choice.
    needed_share: share of requests that must meet the objective for a rate to hold. scale: of a trace's lengths; None to fit
    the context. extra: additional fields of the body. against: those of the other body; None without one. salted: requests do
    not share a cache.
    """

    url: str
    api_key: str | None = field(repr=False)
    model: str | None
    endpoint: str
    tasks: tuple[Task, ...]
    requests: int
    loads: tuple[Load, ...]
    block: int | None
    trace: tuple[Traced, ...] = ()
    scale: float | None = None
    max_tokens: int = 96
    temperature: float = 0.0
    seed: int = 0
    objective: Objective | None = None
    find_rate: bool = False
    needed_share: float = 0.99
    extra: dict[str, Any] = field(default_factory=dict)
    against: dict[str, Any] | None = None
    warmup: int = 1
    timeout_s: float = 300.0
    retry: bool = False
    salted: bool = False

    def turn(self, load: Load) -> int:
        """Requests of one body before the other's turn: enough to keep a closed loop full most of the time."""
        if self.block is not None:
            return self.block
        if load.kind == "concurrency":
            return 1 if load.value == 1 else 4 * int(load.value)
        return ceil(self.requests / 8)

    @classmethod
    def of(
        cls,
        *,
        url: str,
        api_key: str | None,
        model: str | None,
        endpoint: str,
        tasks: str,
        requests: int | None,
        rate: str | None,
        concurrency: str | None,
        trace: Path | None,
        scale_lengths: float | None,
        speed_up: float,
        max_tokens: int,
        temperature: float,
        seed: int,
        slo: str | None,
        find_rate: bool,
        slo_share: float,
        extra_body: str | None,
        against: str | None,
        block: int | None,
        warmup: int,
        timeout: float,
        retry: bool,
        salt: bool,
    ) -> Settings:
        """Settings from the options of the command line. Raises BenchError."""
        for option, value, low, high in (
            ("requests", requests, 1, MOST_REQUESTS),
            ("max-tokens", max_tokens, 1, MOST_TOKENS),
            ("temperature", temperature, 0, HOTTEST),
            ("seed", seed, 0, (1 << 63) - 1 - MOST_REQUESTS),
            ("scale-lengths", scale_lengths, 1e-6, 1_000_000),
            ("speed-up", speed_up, 1e-6, 1_000_000),
            ("slo-share", slo_share, 0.01, 1),
            ("block", block, 1, MOST_REQUESTS),
            ("warmup", warmup, 1, 1000),
            ("timeout", timeout, 0.001, LONGEST_S),
        ):
            if value is not None and not (isfinite(value) and low <= value <= high):
                given, least, most = (f"{one}" if isinstance(one, int) else f"{one:g}" for one in (value, low, high))
                raise BenchError(f"--{option} {given}: it must be at least {least} and at most {most}")
        if endpoint not in ENDPOINTS:
            raise BenchError(f"--endpoint {endpoint}: choose from {', '.join(ENDPOINTS)}")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""):
            raise BenchError("--api-key: a key is visible ASCII text")
        begins = "1" if find_rate and rate is None and concurrency is None and trace is None else rate
        loads = _loads(begins, concurrency, trace is not None, speed_up)
        if find_rate and (slo is None or len(loads) > 1 or loads[0].kind != "rate" or against is not None):
            raise BenchError("--find-rate needs --slo, at most one --rate to begin with, and neither --against nor another load")
        most = int(max((load.value for load in loads if load.kind == "concurrency"), default=0))
        wanted = requests or (100 if find_rate else max(40, 4 * most))
        rows = read_trace(trace, wanted) if trace is not None else []
        wanted = len(rows) or wanted
        if block is not None and against is None:
            raise BenchError("--block needs --against")
        if block is not None and block < most:
            raise BenchError(f"--block {block}: so few can never be {most} at once")
        if scale_lengths is not None and trace is None:
            raise BenchError("--scale-lengths needs --trace")
        return cls(
            url=_root(url),
            api_key=api_key,
            model=model,
            endpoint=endpoint,
            tasks=tuple(load_tasks(tasks)),
            requests=wanted,
            loads=tuple(loads),
            block=block,
            trace=tuple(rows),
            scale=scale_lengths,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            objective=Objective.parse(slo) if slo is not None else None,
            find_rate=find_rate,
            needed_share=slo_share,
            extra=_fields("extra-body", extra_body) or {},
            against=_fields("against", against),
            warmup=warmup,
            timeout_s=timeout,
            retry=retry,
            salted=salt,
        )


def _loads(rate: str | None, concurrency: str | None, traced: bool, speed_up: float) -> list[Load]:
    if (rate is not None) + (concurrency is not None) + traced > 1:
        raise BenchError("choose one of --rate, --concurrency and --trace")
    if not traced and speed_up != 1.0:
        raise BenchError("--speed-up needs --trace")
    if traced:
        return [Load("trace", speed_up)]
    if rate is not None:
        return [Load("rate", value) for value in _numbers("rate", rate, HIGHEST_RATE, whole=False)]
    at_once = "1" if concurrency is None else concurrency
    return [Load("concurrency", value) for value in _numbers("concurrency", at_once, MOST_IN_FLIGHT, whole=True)]


def _numbers(option: str, text: str, highest: float, whole: bool) -> list[float]:
    kind = "whole numbers from 1" if whole else "numbers above 0"
    wrong = f"--{option} {text}: {kind} to {highest:g}, with commas between them"
    try:
        found = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError as error:
        raise BenchError(wrong) from error
    if not all(0 < value <= highest and (not whole or value == int(value)) for value in found):
        raise BenchError(wrong)
    return found


def _root(url: str) -> str:
    """The address without a trailing slash or /v1."""
    wrong = f"--url {url}: it is no address of a server, such as http://127.0.0.1:8000"
    try:
        parts = httpx2.URL(url.strip())
    except httpx2.InvalidURL as error:
        raise BenchError(wrong) from error
    if parts.userinfo:
        raise BenchError("--url: no name and password in it; a key goes into --api-key")
    found = parts.scheme in ("http", "https") and parts.host and "%" not in parts.host and 0 < (parts.port or 80) < 1 << 16
    if not found or parts.query or parts.fragment:
        raise BenchError(wrong)
    return str(parts).rstrip("/").removesuffix("/v1")


def _fields(option: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        fields = json.loads(text, parse_constant=_no_number, parse_float=partial(_number, option))
    except (ValueError, RecursionError) as error:
        raise BenchError(f"--{option} is not JSON: {text}") from error
    if not isinstance(fields, dict):
        raise BenchError(f"--{option} is no JSON object: {text}")
    if taken := [name for name in _OURS if name in fields]:
        raise BenchError(f"--{option}: '{taken[0]}' is not for it to say")
    return fields


def _no_number(name: str) -> Any:
    raise ValueError(name)


def _number(option: str, text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise BenchError(f"--{option}: {text} is no number that could be sent")
    return value
