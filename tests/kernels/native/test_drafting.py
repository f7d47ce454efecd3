"""Drafting draws with exactly the numbers of `paceline.noise`: the same hash, the same choice."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from compiled import DRAWN, HASHED, LIKELIEST, call
from paceline import noise
from paceline.sampling import largest


def test_the_hash_is_that_of_the_noise() -> None:
    draw = random.Random(0)
    tokens = np.arange(500, dtype=np.int64)
    for _ in range(200):
        seed, position = draw.choice([0, 1, draw.getrandbits(32), draw.getrandbits(64)]), draw.randrange(100_000)
        words = torch.zeros(500, dtype=torch.int32)
        call(HASHED, count=500, more=int(np.uint64(noise.key(seed, position)).view(np.int64)), out=words)
        assert np.array_equal(words.numpy(), noise.hashed(seed, position, tokens))


@pytest.mark.parametrize("size", [1, 7, 500, 4096])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.05, 5.0])
def test_the_choice_is_that_of_the_noise(size: int, spread: float, temperature: float) -> None:
    for position in range(40):
        logits = torch.randn(size, generator=torch.Generator().manual_seed(position)) * spread
        logits[torch.rand(size, generator=torch.Generator().manual_seed(position)) < 0.1] = -torch.inf
        chosen = torch.zeros(1, dtype=torch.int32)
        call(
            DRAWN, logits, count=size, number=temperature, more=int(np.uint64(noise.key(9, position)).view(np.int64)), out=chosen
        )
        wanted = noise.noised_best(logits / temperature, 9, position)
        assert [int(chosen)] == (wanted or [-1])


def test_the_likeliest_is_the_first_of_the_largest() -> None:
    chosen = torch.zeros(1, dtype=torch.int32)
    far = [0.0] * 700 + [5.0] + [0.0] * 900
    cases = [
        [1.0, 3.0, 3.0], [-torch.inf, -5.0], [torch.nan, 2.0, torch.nan, 4.0], [torch.nan], [-torch.nan, 1.0], [-torch.inf],
        [torch.inf, 1.0], [-1.0, -0.0, 0.0], [*far, 5.0], [-1.0] * 300 + [-0.0] + [-1.0] * 300 + [0.0],
    ]  # fmt: skip
    for row in cases:
        call(LIKELIEST, torch.tensor(row), count=len(row), out=chosen)
        assert int(chosen) == largest(np.array(row, np.float32))
