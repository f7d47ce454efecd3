"""A short soak: see `soak.py`, which `make soak` runs for half an hour."""

from __future__ import annotations

import asyncio

from serve.harness import running
from serve.soak import failures, soaked


def test_nothing_is_left_of_mixed_load() -> None:
    # a cache so small that it is full before the measuring begins
    with running("--batch", "4", "--queue", "64", "--cache-tokens", "4096") as served:
        assert failures(asyncio.run(soaked(served, 10.0, 6, say=False))) == []
