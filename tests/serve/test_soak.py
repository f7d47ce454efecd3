"""A short soak: see `soak.py`, which `make soak` runs for half an hour."""

from __future__ import annotations

import asyncio

from serve.harness import running
from serve.soak import failures, soaked


def test_nothing_is_left_of_mixed_load() -> None:
    # a cache so small that it is full before measuring begins
    with running("--batch", "4", "--queue", "64", "--cache-tokens", "4096") as served:
        assert failures(asyncio.run(soaked(served, 10.0, 6, say=False))) == []


def test_a_soak_in_which_hardly_anything_was_answered_or_something_stays_has_failed() -> None:
    sound = {
        **dict.fromkeys(("most_bytes", "allowed_bytes", "open_files_before", "open_files_after"), 0),
        **dict.fromkeys(("running", "waiting", "held", "restarts"), 0.0),
        "statuses": {"200": 9, "400": 2, "429": 3},
    }
    assert failures(sound) == []
    for wrong in (
        {"statuses": {"200": 4, "400": 2, "429": 3}},
        {"statuses": {}, "held": 0.1},
        {"statuses": {"200": 9, "500": 1}},
    ):
        assert len(failures(sound | wrong)) == 1
