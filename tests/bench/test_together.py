"""The benchmark of threads: each multiplies everything on its own, and they synchronise as often as stated."""

from __future__ import annotations

import numpy as np
import pytest

from native import THREADS
from paceline.bench.circumstances import on_fewer_cores, together
from paceline.bench.together import Together


@pytest.mark.parametrize("threads", THREADS)
def test_every_thread_multiplies_for_itself(threads: int) -> None:
    one = Together(threads)
    one._activations[:] = 1
    one()
    assert (one._outputs == 512).all(), "512 inputs of one, times weights of one"
    assert 0 < one.cores[0] < 4 * threads
    assert 0 < one.meeting_us[0] < np.inf
    assert one._counter[0] == (one._record["meetings"][0] * threads if threads > 1 else 0)


@pytest.mark.parametrize(("cores", "shared"), [([1.9, 2.0], False), ([1.1, 2.0], True)])
def test_a_page_says_where_threads_shared_a_core(cores: list[float], shared: bool) -> None:
    record = {"threads": 2, "together": {"cores": cores, "meeting_us": [0.2, 0.1]}}
    assert on_fewer_cores(record) == shared
    told = together(record)
    assert told.startswith(f"2 threads multiplied like {min(cores):.2f} to 2.00 cores, and met in 0.10 to 0.20 us")
    assert told.endswith("share a core") == shared


@pytest.mark.parametrize("record", [{"threads": 1, "together": None}, {"threads": 2}])
def test_nothing_is_said_of_one_thread_or_by_an_older_record(record: dict[str, object]) -> None:
    assert together(record) == ""
    assert not on_fewer_cores(record)
