"""Settings: the options of one run of `paceline bench`, checked before any work begins."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.bench.errors import BenchError
from paceline.bench.grow_shape import Growth
from paceline.bench.peers import chosen
from paceline.bench.tasks import Task, load_tasks
from paceline.machine import most_threads

COLDEST, HOTTEST = 1e-6, 100.0
LARGEST_SEED = (1 << 63) - 1
_LONGEST_NAME = 64
_NAME = re.compile(rf"[\w.-]{{0,{_LONGEST_NAME}}}", re.ASCII)
LARGEST_BATCH, MOST_TOKENS, MOST_REPEATS, MOST_CONTEXT = 256, 1 << 16, 1000, 1 << 20


@dataclass(frozen=True)
class Settings:
    """model: None for the embedded default. drafts: specs run against plain decoding, each under all of `verifiers` and
    `policies`, where None stands for the default. peers, absent: requested peers that are installed, and that are not. batches:
    batch sizes measured in addition to 1. name: distinguishes runs with equal settings."""

    model: str | None
    drafts: tuple[str, ...]
    tasks: tuple[Task, ...]
    verifiers: tuple[str | None, ...] = (None,)
    policies: tuple[str | None, ...] = (None,)
    lossy: bool = False
    weights: str | None = None
    kv_cache: str | None = None
    growth: Growth | None = None
    peers: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    threads: int | None = None
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int = 96
    repeats: int = 3
    context_tokens: int = 0
    name: str = ""

    @classmethod
    def of(
        cls,
        model: str | None,
        drafts: list[str],
        *,
        verify: list[str],
        policy: list[str],
        lossy: bool,
        tasks: str,
        weights: str | None,
        kv_cache: str | None,
        grow: str | None,
        peers: str,
        batch: str,
        threads: int | None,
        temperature: float,
        seed: int,
        max_tokens: int,
        repeats: int,
        limit: int | None,
        context: int,
        name: str,
        categories: str = "",
    ) -> Settings:
        """Settings from the options of the command line. Raises BenchError."""
        for option, value, low, high in (
            ("threads", threads, 1, None),
            ("max-tokens", max_tokens, 1, MOST_TOKENS),
            ("repeats", repeats, 1, MOST_REPEATS),
            ("limit", limit, 1, None),
            ("context", context, 0, MOST_CONTEXT),
            ("seed", seed, 0, LARGEST_SEED),
        ):
            if value is not None and (value < low or (high is not None and value > high)):
                raise BenchError(f"--{option} {value}: it must be at least {low}" + (f" and at most {high}" if high else ""))
        if threads is not None and threads > most_threads():
            # fewer would run than the record states
            raise BenchError(f"--threads {threads}: {most_threads()} can run at once on this machine")
        if not _NAME.fullmatch(name):
            raise BenchError(f"--name '{name[:80]}': letters, digits, '.', '_' and '-', {_LONGEST_NAME} at most")
        if not 0.0 <= temperature <= HOTTEST:
            raise BenchError(f"--temperature {temperature}: it must be at least 0 and at most {HOTTEST:g}")
        if 0.0 < temperature < COLDEST:
            raise BenchError(f"--temperature {temperature}: it must be 0 (greedy) or at least {COLDEST:g}")
        installed, absent = chosen(peers)
        if temperature > 0.0 and peers:
            raise BenchError("peers are measured greedy: leave out --temperature, or --peers")
        if lossy and peers:
            raise BenchError("peers are compared by the same text: leave out --lossy, or --peers")
        if peers and _uses_gpu():
            raise BenchError("peers run on the processor, and the target would on a GPU: set CUDA_VISIBLE_DEVICES to ''")
        return cls(
            model,
            tuple(dict.fromkeys(drafts)),
            tuple(load_tasks(tasks, limit, categories)),
            tuple(dict.fromkeys(verify)) or (None,),
            tuple(dict.fromkeys(policy)) or (None,),
            lossy,
            weights,
            kv_cache,
            Growth.parse(grow) if grow is not None else None,
            tuple(installed),
            tuple(absent),
            tuple(sorted({*_batches(batch)} - {1})),
            threads,
            temperature,
            seed,
            max_tokens,
            repeats,
            context,
            name,
        )


def _batches(text: str) -> list[int]:
    sizes = [part.strip() for part in text.split(",")]
    if not all(size.isascii() and size.isdecimal() and len(size) < 6 and 1 <= int(size) <= LARGEST_BATCH for size in sizes):
        raise BenchError(f"--batch {text}: sizes are whole numbers from 1 to {LARGEST_BATCH}, with commas between them")
    return [int(size) for size in sizes]


def _uses_gpu() -> bool:
    """Whether models are loaded onto a GPU."""
    import torch

    return torch.cuda.is_available()
