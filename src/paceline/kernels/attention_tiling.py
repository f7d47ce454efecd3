"""Tiling: how tree attention divides its work, and how much of it one program does."""

# pyright: reportMissingImports=false
# ... for Triton is optional

from __future__ import annotations

from dataclasses import dataclass, replace

import triton

from paceline.kernels.work_items import Division

_BLOCK_BYTES = 16 << 10
"""Of a block of keys."""


@dataclass(frozen=True)
class Tiling:
    """Part of what the target *is*: others differ in the last bits, so one serves a model for its life; but for rows, stages and
    few, on which no bit depends.

    rows: lines of a tile, each a query head of a row; a power of two, at least 16 and the query heads of a kv head. keys:
    positions per block, at most 64. stages: blocks on their way at once. near, near_splits: positions per program, and how many
    programs there are of these; split: those of a program further on. Both are multiples of `keys`: a short text is for many
    programs, a long one would leave them too much to merge. few: programs of a split each that leave much of a large device idle.
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
        """What suits a model: tiles hold all query heads of a kv head, and a block of keys no more than fits beside its values in
        the shared memory of small devices."""
        lines = max(16, triton.next_power_of_2(key_dim))
        keys = max(16, min(cls.keys, _BLOCK_BYTES // (lines * number_bytes)))
        return cls(rows=max(cls.rows, triton.next_power_of_2(heads // kv_heads)), keys=keys)

    @property
    def tall(self) -> Tiling:
        """The same for steps of many rows: keys are read for twice as many at once."""
        return replace(self, rows=2 * self.rows, stages=2)

    def division(self, heads: int, kv_heads: int) -> Division:
        """Who works on what, of a layer of so many heads. Raises ValueError where not even one row fits a tile."""
        if heads > self.rows * kv_heads:
            raise ValueError(f"{heads // kv_heads} query heads per kv head do not fit a tile of {self.rows} lines")
        return Division(self.rows * kv_heads // heads, kv_heads, self.near, self.near_splits, self.split, self.few)
