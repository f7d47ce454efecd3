"""Soak: mixed load for a while, and then no memory, files or requests may remain. `make soak` runs it for half an hour.

Requests of every kind, many of them invalid, cancelled or too large, from several clients; from time to time the engine's memory,
its open files and the requests in flight are checked. After the warm-up the resident memory of both processes may grow by a tenth
or by 64 MiB, whichever is more, and at the end nothing may be in flight and no file left open.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2 as httpx

sys.path.insert(0, str(Path(__file__).parent.parent))

from serve.harness import Served, running

PROMPTS = ["Once upon a time", "name : The Punter , food : Italian", "def add(a, b):", "1 + 2 =", "How many singles"]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}


def body(draw: random.Random) -> dict[str, Any]:
    """One request of a random kind."""
    asked: dict[str, Any] = {
        "prompt": draw.choice(PROMPTS) * draw.choice([1, 1, 1, 20]),
        "max_tokens": draw.choice([1, 8, 32, 96]),
        "temperature": draw.choice([0, 0.7, 1.2]),
        "stream": draw.random() < 0.5,
    }
    kind = draw.randrange(10)
    more: dict[int, dict[str, Any]] = {
        0: {"n": 3},
        1: {"logprobs": 3, "echo": True},
        2: {"structured_outputs": {"json": SCHEMA}, "max_tokens": 40},
        3: {"prediction": {"type": "content", "content": "there was a little girl named Lily"}},
        4: {"speculation": {"drafter": draw.choice(["suffix", "lookahead", "recycle", "none"])}},
        5: {"cache_salt": str(draw.randrange(40)), "priority": draw.randrange(-2, 3)},
        6: {"presence_penalty": 1.0, "stop": ["."], "seed": draw.randrange(1 << 32)},
        7: {"temperature": -1},
        8: {"prompt": "word " * 5000},
        9: {},
    }
    return asked | more[kind]


async def client_loop(url: str, until: float, seed: int, counts: Counter[str]) -> None:
    draw = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        while time.monotonic() < until:
            asked, leaves = body(draw), draw.random() < 0.1
            async with client.stream("POST", "/v1/completions", json=asked) as answer:
                counts[str(answer.status_code)] += 1
                if not leaves:
                    await answer.aread()
            await asyncio.sleep(draw.expovariate(20))


def resident_bytes(served: Served) -> int:
    """Resident memory of the server and its engine."""
    total = 0
    for pid in (served.process.pid, served.engine_pid):
        status = Path(f"/proc/{pid}/status").read_text()
        total += int(status.split("VmRSS:")[1].split()[0]) * 1024
    return total


def open_files(served: Served) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (served.process.pid, served.engine_pid))


async def soaked(served: Served, seconds: float, clients: int, say: bool) -> dict[str, Any]:
    """Runs the load; returns the measurements."""
    counts: Counter[str] = Counter()
    warm_s = min(seconds / 4, 120.0)
    began = time.monotonic()
    files = open_files(served)
    loops = [asyncio.create_task(client_loop(served.url, began + seconds, seed, counts)) for seed in range(clients)]
    sizes: list[tuple[float, int]] = []
    while time.monotonic() < began + seconds:
        await asyncio.sleep(min(5.0, seconds / 20))
        sizes.append((time.monotonic() - began, resident_bytes(served)))
        if say:
            print(f"{sizes[-1][0]:7.0f} s  {sizes[-1][1] / 2**20:7.1f} MiB  {sum(counts.values())} requests", flush=True)
    await asyncio.gather(*loops)
    await asyncio.sleep(2.0)
    warm = max(size for at, size in sizes if at <= warm_s)
    most = max(size for _, size in sizes)
    return {
        "seconds": seconds,
        "clients": clients,
        "statuses": dict(counts),
        "warm_bytes": warm,
        "most_bytes": most,
        "allowed_bytes": warm + max(warm // 10, 64 << 20),
        "open_files_before": files,
        "open_files_after": open_files(served),
        "running": served.metric("vllm:num_requests_running"),
        "waiting": served.metric("vllm:num_requests_waiting"),
        "held": served.metric("vllm:kv_cache_usage_perc"),
        "restarts": served.metric("paceline_engine_restarts_total"),
    }


def failures(seen: dict[str, Any]) -> list[str]:
    """The failed conditions, in words; empty if there are none."""
    wrong = []
    if seen["most_bytes"] > seen["allowed_bytes"]:
        wrong.append(f"memory grew from {seen['warm_bytes'] >> 20} to {seen['most_bytes'] >> 20} MiB")
    if seen["open_files_after"] > seen["open_files_before"] + 2:
        wrong.append(f"{seen['open_files_after'] - seen['open_files_before']} more files are open")
    left = {name: seen[name] for name in ("running", "waiting", "held", "restarts")}
    if any(left.values()):
        wrong.append(f"what is left: {left}")
    statuses = seen["statuses"]
    if set(statuses) - {"200", "400", "429"} or 2 * statuses.get("200", 0) < sum(statuses.values()):
        wrong.append(f"statuses {statuses}")
    return wrong


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=1800.0)
    arguments.add_argument("--clients", type=int, default=12)
    given = arguments.parse_args()
    with running("--batch", "8", "--queue", "64") as served:
        seen = asyncio.run(soaked(served, given.seconds, given.clients, say=True))
    print(json.dumps(seen))
    for one in failures(seen):
        print(f"soak: {one}", file=sys.stderr)
    return bool(failures(seen))


if __name__ == "__main__":
    raise SystemExit(main())
