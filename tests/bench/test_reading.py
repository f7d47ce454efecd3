"""The lower bound of a forward: every byte is read, on one thread and on two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.bench.reading import Reading


@pytest.mark.parametrize("threads", [1, 2])
def test_every_word_is_read(threads: int) -> None:
    reading = Reading(1_000_000, threads)
    assert 0 <= 1_000_000 - reading.bytes < 8 * 8 * threads
    words = np.random.default_rng(7).integers(0, 1 << 62, reading.bytes // 8)
    reading.memory.view(torch.int64).copy_(torch.from_numpy(words))
    assert reading(1) > 0.0
    assert reading.found == np.bitwise_xor.reduce(words)
