"""What ADR 0009 rests on: a fork of slabs and of pages, and attention that reads each. Run it: python docs/adr/0009_cost.py"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np
import torch

from paceline.cache.base import KVCache
from paceline.cache.paged import PagedCache
from paceline.cache.panels import PanelCache, Shape
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict

SHAPES = {"embedded, 14M (8 layers, 2 heads of 64)": (8, 2, 64), "100M-like (12 layers, 12 heads of 64)": (12, 12, 64)}
LENGTHS = (128, 512, 1024)
PAGE = 16


def timed(act, undo=lambda: None, repeats: int = 30) -> float:
    """Median milliseconds."""
    times = []
    for _ in range(repeats):
        began = perf_counter()
        act()
        times.append(perf_counter() - began)
        undo()
    return 1e3 * median(times)


def fork_ms(cache: KVCache) -> float:
    return timed(lambda: cache.fork(0, 1), lambda: cache.release(1))


def panels(shape: tuple[int, int, int], length: int) -> PanelCache:
    cache = PanelCache(Shape(*shape, panel=64))
    slab = cache.reserve(0, length)
    slab.keys.fill(1.0)
    slab.values.fill(1.0)
    cache.advance(0, length)
    return cache


def pages(shape: tuple[int, int, int], length: int) -> PagedCache:
    layers, heads, size = shape
    cache = PagedCache(2 * length // PAGE + 2, PAGE)
    tokens = (0,) * length
    step = Step.of([Feed(Sequence(0, (*tokens, 0), SamplingParams(), 0), 0, tokens, None)])
    cache.stage(step)
    for layer in range(layers):
        rows = torch.ones(heads, length, size)
        cache.store(layer, step.segments[0], rows, rows)
    cache.commit([Verdict()])
    return cache


def read_ms(shape: tuple[int, int, int], length: int) -> tuple[float, float]:
    """One query's attention over all layers: contiguous keys and values, and keys and values gathered from pages first."""
    layers, heads, size = shape
    keys = np.ones((layers, heads, length, size), np.float32)
    values, queries = keys.copy(), np.ones((layers, heads, size, 1), np.float32)
    pool_keys = np.ones((layers, length // PAGE, PAGE, heads, size), np.float32)
    pool_values = pool_keys.copy()
    table = np.random.default_rng(0).permutation(length // PAGE)

    def attend(keys: np.ndarray, values: np.ndarray, query: np.ndarray) -> np.ndarray:
        scores = (keys @ query)[..., 0]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True))[:, None] @ values

    def dense() -> None:
        for layer in range(layers):
            attend(keys[layer], values[layer], queries[layer])

    def gathered() -> None:
        for layer in range(layers):
            one = pool_keys[layer][table].reshape(length, heads, size).transpose(1, 0, 2)
            other = pool_values[layer][table].reshape(length, heads, size).transpose(1, 0, 2)
            attend(one, other, queries[layer])

    return timed(dense), timed(gathered)


def main() -> None:
    torch.set_num_threads(1)
    print("shape | tokens | fork of slabs ms | fork of pages ms | read of slabs ms | gathered from pages ms")
    for name, shape in SHAPES.items():
        for length in LENGTHS:
            row = fork_ms(panels(shape, length)), fork_ms(pages(shape, length)), *read_ms(shape, length)
            print(name, length, *(f"{ms:.3f}" for ms in row), sep=" | ")


if __name__ == "__main__":
    main()
