"""The cost tables of ADR 0001: one draw from a row of scores, in milliseconds on one thread."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from paceline.kernels.choices.tree_walk import walked
from paceline.noise import gumbel, noised_best
from paceline.params import SamplingParams
from paceline.sampling import Context, choose
from paceline.sequence import Sequence
from paceline.tree import DraftTree

torch.set_num_threads(1)


def best_ms(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(5):
        began = perf_counter()
        for _ in range(20):
            call()
        times.append((perf_counter() - began) / 20)
    return min(times) * 1e3


for size in (4096, 152_000):
    every = torch.arange(size)
    for deviation in (1.0, 3.0):
        scores = torch.randn(size, generator=torch.Generator().manual_seed(0)) * deviation
        keyed = best_ms(lambda s=scores: noised_best(s, 1, 5))
        full = best_ms(lambda s=scores, e=every: (s.double() + gumbel(1, 5, e)).argmax())
        plain = best_ms(lambda s=scores: torch.multinomial(s.softmax(-1), 1))
        print(f"V={size} deviation {deviation}: keyed {keyed:.2f}, every token {full:.2f}, multinomial {plain:.2f}")

ROOT = DraftTree.root(0)
for size in (4096, 32_000, 152_000):
    row = torch.randn(1, size, generator=torch.Generator().manual_seed(0)) * 3
    for cuts in ({}, {"top_p": 0.95}, {"top_k": 40, "top_p": 0.95}, {"min_p": 0.05}):
        one = Sequence(0, (0,), SamplingParams(temperature=0.8, **cuts), 1)
        compiled = best_ms(lambda s=one, r=row: walked([s], [ROOT], [r]))
        long_way = best_ms(lambda s=one, r=row: choose(r, [Context(s)]))
        print(f"V={size} {cuts or 'no cuts'}: compiled {compiled:.3f}, the long way {long_way:.3f}")
