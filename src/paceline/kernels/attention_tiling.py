"""Tiling: how tree attention divides its work, and how much of it one program does."""

# pyright: reportMissingImports=false
# ... for Triton is optional

from __future__ import annotations

from dataclasses import dataclass, replace

import triton

from paceline.kernels.work_items import Division

_BLOCK_BYTES = 16 << 10
"""Most bytes of a block of keys."""


@dataclass(frozen=True)
class Tiling:
    """Part of what the target *is*: other tilings differ in the last bits, so a model keeps one for its lifetime. No bit depends
    on rows, stages and few.

    rows: lines of a tile, each a query head of a row; a power of two, at least 16 and the query heads of a kv head. keys:
    positions per block, at most 64. stages: blocks being loaded at once. near, near_splits: positions of each of the first
    splits, and how many of these there are; split: positions of each later split. Both are multiples of `keys`: short splits give
    a short text many programs, in a long text they would leave too much to merge. few: fewer programs than this, of one split
    each, leave much of a large device idle.
    """

    rows: int = 32
    keys: int = 64
    split: int = 512
    stages: int = 5
    near: int = 128
    near_splits: int = 16
    few: int = 128

    @classmethod
    def of(cls, heads: int, kv_heads: int, key_dim: int, number_bytes: int) -> Tiling:
        """The tiling for a model: a tile holds all query heads of a kv head, and a block of keys fits beside its values in the
        shared memory of small devices."""
        lines = max(16, triton.next_power_of_2(key_dim))
        keys = max(16, min(cls.keys, _BLOCK_BYTES // (lines * number_bytes)))
        return cls(rows=max(cls.rows, triton.next_power_of_2(heads // kv_heads)), keys=keys)

    @property
    def tall(self) -> Tiling:
        """The tiling for steps of many rows: keys are read for twice as many rows at once."""
        return replace(self, rows=2 * self.rows, stages=2)

    def division(self, heads: int, kv_heads: int) -> Division:
        """The division of work for a layer with so many heads. Raises ValueError if not even one row fits a tile."""
        if heads > self.rows * kv_heads:
            raise ValueError(f"{heads // kv_heads} query heads per kv head do not fit a tile of {self.rows} lines")
        return Division(self.rows * kv_heads // heads, kv_heads, self.near, self.near_splits, self.split, self.few)
