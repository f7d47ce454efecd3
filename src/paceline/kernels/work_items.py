"""Work items: how attention over a step is divided among programs, as the host tells it; neither Triton nor a device is needed.

Positions fall into splits, which begin where they do for every text, and splits into parts: the first so many that one program
walks, and behind them each by itself. An item is a tile of rows and one part that these rows reach, so no program is started for
positions that a sequence does not have, however long the longest one is.

The nodes of a draft that forks share a tile only where none of them lies: from the part in which their paths part each row has
items of its own, and all of them are worked on at once. In one tile they would take turns. But where tiles are many enough to be
walked a device is busy as it is, and there a tile that takes turns reads less than its rows do by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from paceline.step import Segment

Run = tuple[int, int, int, int, int, int]
"""Items of the same rows, one per part: sequence, first row, rows, straight (slots below it are positions), first part, parts."""
ITEM = 5
"""Numbers of an item: those of a run but the last, with the part itself in place of the first one."""
ALONE = 8, 64
"""Sequences and rows at most of a step that may hold a single tile, as what is recorded is recorded for so many at least."""
_HELD = 1 << 14
"""Tiles times parts at most, where tiles are many: for each a key head leaves some 16 KB to be merged."""


class Division(NamedTuple):
    """What of a tiling and of a layer's heads decides who works on what.

    rows_per_tile: rows of a step that share a tile. near, near_splits, split, few: as `Tiling` has them.
    """

    rows_per_tile: int
    kv_heads: int
    near: int
    near_splits: int
    split: int
    few: int

    def split_of(self, position: int) -> int:
        """Which split a position lies in."""
        far = position - self.near * self.near_splits
        return position // self.near if far < 0 else self.near_splits + far // self.split

    def walked(self, rows: int, sequences: int, positions: int) -> tuple[int, int]:
        """How many splits one program walks from the first on, and how many parts so many positions have then. No bit depends
        on it. rows, sequences: as many as the tables of a step hold.

        Where tiles are many they keep a device busy, and splits that were not walked have to be written and merged; but of few
        tiles, or where one text is far longer than those beside it, a program that walks too far ends long behind the others.
        There it walks no further than it must for what is written to stay within bounds.
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
        """How many parts there are up to and with that of a position."""
        return max(self.split_of(position) - walked + 1, 0) + 1

    def chain(self, number: int, low: int, rows: int, start: int, straight: int, walked: int) -> list[Run]:
        """What there is to do for rows of a sequence that lie in order, the first of them, `low`, at position `start`."""
        size = self.rows_per_tile
        if rows <= size:
            return [(number, low, rows, straight, 0, self.parts(start + rows - 1, walked))]
        found = list[Run]()
        for first in range(0, rows, size):
            behind = min(first + size, rows)
            found.append((number, low + first, behind - first, straight, 0, self.parts(start + behind - 1, walked)))
        return found

    def runs(self, segments: Iterable[Segment], walked: int) -> list[Run]:
        """What there is to do for a step. Rows of a chain and nodes of a tree below it never share a tile, for their keys are
        found unlike."""
        found = list[Run]()
        for number, segment in enumerate(segments):
            # a chain's slots lie in order to its end
            forks = not segment.is_chain
            rows, start = segment.chain if forks else segment.rows, segment.start
            end = start + rows
            found += self.chain(number, segment.low, rows, start, end, walked)
            if forks:
                found += self._forked(number, segment, end, walked)
        return found

    def _forked(self, number: int, segment: Segment, straight: int, walked: int) -> list[Run]:
        """What there is to do for the nodes below the root of a draft that forks."""
        assert segment.tree is not None
        first, depth, size = segment.low + segment.chain, segment.tree.depth[1:], self.rows_per_tile
        tiles = [(low, depth[low : low + size]) for low in range(0, len(depth), size)]
        if walked > 1:
            return [
                (number, first + low, len(its), straight, 0, self.parts(straight - 1 + max(its), walked)) for low, its in tiles
            ]
        common = self.split_of(straight)
        found: list[Run] = [(number, first + low, len(its), straight, 0, common) for low, its in tiles if common]
        # of few levels, and so of few sums
        parts = [self.split_of(straight - 1 + level) + 1 - common for level in range(max(depth) + 1)]
        return found + [(number, first + node, 1, straight, common, parts[level]) for node, level in enumerate(depth)]


def count_of(runs: Iterable[Run]) -> int:
    """How many items they are."""
    return sum([run[ITEM] for run in runs])


def lay_out(runs: list[Run], items: np.ndarray) -> None:
    """Write them to items, int32 [items, 5]: sequence, first row, rows, straight, part; rows are 0 in those that pad. Raises
    ValueError where they do not fit.

    Tiles that read the same part of a text stand side by side, so that what one reads is near when the next one asks for it.
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
        # less the items before each
        table[:, ITEM - 1] += parts - parts.cumsum(dtype=np.int32)
        found = table[:, :ITEM].repeat(parts, 0)
        found[:, ITEM - 1] += np.arange(end, dtype=np.int32)
        # numbers of two bytes are sorted by counting them
        items[:end] = found[found[:, ITEM - 1].astype(np.uint16).argsort(kind="stable")]
    items[end:] = 0
