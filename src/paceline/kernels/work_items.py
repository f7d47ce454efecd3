"""Work items: how the host divides attention over a step among programs; needs neither Triton nor a device.

Positions are divided into splits, at the same borders for every text, and splits are grouped into parts: the first part holds
all splits that one program walks one after another, each later part a single split. An item is a tile of rows and one part that
these rows reach, so no program is started for positions that a sequence does not have, however long the longest one is.

The nodes of a draft that forks share a tile only for positions before the fork: from the part in which their paths diverge, each
row has items of its own, which run in parallel. In one tile the rows would take turns. But with tiles enough to be walked, the
device is busy anyway, and a tile that takes turns reads less than its rows would separately.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from paceline.step import Segment

Run = tuple[int, int, int, int, int, int]
"""Items of the same rows, one per part: sequence, first row, rows, straight (slots below it are positions), first part, parts."""
ITEM = 5
"""Numbers of an item: as a run, with the part in place of the first part and the number of parts."""
ALONE = 8, 64
"""Sequences and rows of tables up to which they may hold a single tile: recordings have at least this extent."""
_HELD = 1 << 14
"""Most tiles times parts, when tiles are many: each leaves some 16 KB per key head to be merged."""


class Division(NamedTuple):
    """The part of a tiling, and of a layer's heads, that determines the work items.

    rows_per_tile: rows of a step that share a tile. near, near_splits, split, few: as in `Tiling`.
    """

    rows_per_tile: int
    kv_heads: int
    near: int
    near_splits: int
    split: int
    few: int

    def split_of(self, position: int) -> int:
        """The split that contains a position."""
        far = position - self.near * self.near_splits
        return position // self.near if far < 0 else self.near_splits + far // self.split

    def walked(self, rows: int, sequences: int, positions: int) -> tuple[int, int]:
        """How many splits one program walks from the first on, and into how many parts so many positions are divided then. It
        changes no bit of the result. rows, sequences: those of a step's tables.

        Many tiles keep a device busy, and splits that are not walked have to be written and merged. But with few tiles, or when
        one text is far longer than the others, a program that walks too far finishes long after the others; then it walks only as
        far as needed to bound the memory of the results to be merged.
        """
        splits = self.split_of(positions - 1) + 1
        few_sequences, few_rows = ALONE
        tiles = max(sequences if sequences > few_sequences else 1, rows // self.rows_per_tile if rows > few_rows else 1)
        if tiles * self.kv_heads < self.few:
            return 1, splits
        most = max(_HELD * self.rows_per_tile // rows, 1)
        walked = splits if sequences == 1 else max(min(self.near_splits, splits), splits + 1 - most)
        return walked, splits - walked + 1

    def parts(self, position: int, walked: int) -> int:
        """Number of parts up to and including the one that contains a position."""
        return max(self.split_of(position) - walked + 1, 0) + 1

    def chain(self, number: int, low: int, rows: int, start: int, straight: int, walked: int) -> list[Run]:
        """The runs for consecutive rows of a sequence, the first of them, `low`, at position `start`."""
        tiles = [(first, min(first + self.rows_per_tile, rows)) for first in range(0, rows, self.rows_per_tile)]
        return [(number, low + at, end - at, straight, 0, self.parts(start + end - 1, walked)) for at, end in tiles]

    def runs(self, segments: Iterable[Segment], walked: int) -> list[Run]:
        """The runs for a step. Rows of a chain and the nodes of a forking tree below it never share a tile, since their keys are
        found differently."""
        found = list[Run]()
        for number, segment in enumerate(segments):
            # a draft that is a chain has its slots in order to the end
            forks = not segment.is_chain
            rows, start = segment.chain if forks else segment.rows, segment.start
            end = start + rows
            found += self.chain(number, segment.low, rows, start, end, walked)
            if forks:
                found += self._forked(number, segment, end, walked)
        return found

    def _forked(self, number: int, segment: Segment, straight: int, walked: int) -> list[Run]:
        """The runs for the nodes below the root of a draft that forks."""
        assert segment.tree is not None
        first, depth, size = segment.low + segment.chain, segment.tree.depth[1:], self.rows_per_tile
        tiles = [(low, depth[low : low + size]) for low in range(0, len(depth), size)]
        if walked > 1:
            return [
                (number, first + low, len(its), straight, 0, self.parts(straight - 1 + max(its), walked)) for low, its in tiles
            ]
        common = self.split_of(straight)
        found: list[Run] = [(number, first + low, len(its), straight, 0, common) for low, its in tiles if common]
        # computed per level, as there are few
        parts = [self.split_of(straight - 1 + level) + 1 - common for level in range(max(depth) + 1)]
        return found + [(number, first + node, 1, straight, common, parts[level]) for node, level in enumerate(depth)]


def count_of(runs: Iterable[Run]) -> int:
    """Number of items of these runs."""
    return sum([run[ITEM] for run in runs])


def lay_out(runs: list[Run], items: np.ndarray) -> None:
    """Write runs to items, int32 [items, 5]: sequence, first row, rows, straight, part; padding items have 0 rows. Raises
    ValueError if they do not fit.

    Items of the same part are adjacent, so that keys that one tile reads are still cached when the next one needs them.
    """
    end = count_of(runs)
    if end > len(items):
        raise ValueError("there is more to do than the tables have items")
    if len(runs) == 1:
        # most steps are of one sequence, and wait for this
        items[:end] = runs[0][:ITEM]
        items[:end, ITEM - 1] = np.arange(runs[0][4], runs[0][4] + end, dtype=np.int32)
    else:
        table = np.array(runs, np.int32)
        parts = table[:, ITEM]
        # the first part minus the items of earlier runs, so that adding an item's index gives its part
        table[:, ITEM - 1] += parts - parts.cumsum(dtype=np.int32)
        found = table[:, :ITEM].repeat(parts, 0)
        found[:, ITEM - 1] += np.arange(end, dtype=np.int32)
        # numpy sorts 16-bit integers by radix sort
        items[:end] = found[found[:, ITEM - 1].astype(np.uint16).argsort(kind="stable")]
    items[end:] = 0
