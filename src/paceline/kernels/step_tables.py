"""StepTables: where on the device each row of a step finds its keys, built once per step and read by every layer.

A row sees one key per position, from its window's edge up to its own position, and a position's key lies in one slot. For the
committed prefix and a chain slot and position agree; below the root of a tree that forks they part, because siblings share a
position. So a row carries a short list, its `tail`: the slots of its ancestors below the root and of itself, by depth. That list
replaces the mask. It is N x depth at most, chains need none, and a kernel that walks positions reads the same keys in the same
order whether they are committed or staged: only the address differs.

Everything is int32 in one buffer, so that a step costs one copy to the device, which does not wait; a captured graph keeps its
buffer and `load` fills it anew.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from paceline.step import Segment, Step

NOWHERE = 0
"""The page that no sequence owns (`cache.paged` leaves it out): rows that only pad a bucket write there."""


class Extent(NamedTuple):
    """How large the tables are. A captured graph serves every step whose own extent fits.

    rows: T. tiles: groups of rows that one program attends for. sequences: S. blocks: pages of the longest sequence.
    depth: levels of the deepest tree below its root, at least 1.
    """

    rows: int
    tiles: int
    sequences: int
    blocks: int
    depth: int

    @classmethod
    def of(cls, step: Step, blocks: Many[array[int]], rows_per_tile: int) -> Extent:
        """The smallest that holds this step. blocks: per segment the pages of its sequence, in order of slots."""
        return cls(
            len(step.tokens),
            sum([len(_tiles(segment, rows_per_tile)) for segment in step.segments]),
            len(step.segments),
            max([len(pages) for pages in blocks]),
            max([_depth(segment) for segment in step.segments]),
        )

    def bucketed(self, least: Extent) -> Extent:
        """Every number rounded up to a power of two, and no less than `least` has: few graphs serve all steps."""
        return Extent(*[max(1 << (number - 1).bit_length(), smallest) for number, smallest in zip(self, least, strict=True)])


SMALLEST = Extent(rows=64, tiles=4, sequences=8, blocks=16, depth=16)
"""What a graph is recorded for at least. A library chooses how to multiply by the number of rows, and other ways have other bits:
so many rows and fewer are all multiplied alike, and a verified row is what it is decoded alone. They read the same weights."""


@dataclass
class RowTables:
    """Where rows find their keys, as kernels read it, all of it int32 on the device.

    positions: [T], -1 for padding. tiles: [tiles, 4]: sequence, first row, rows, straight (slots below it are positions). blocks:
    [S, blocks], page ids. tail: [T, depth]. destinations: [T], page * page_size + place of the row's own key. token_ids: [T].
    """

    extent: Extent
    page_size: int
    rows_per_tile: int
    positions: torch.Tensor
    tiles: torch.Tensor
    blocks: torch.Tensor
    tail: torch.Tensor
    destinations: torch.Tensor
    token_ids: torch.Tensor

    @staticmethod
    def shapes(extent: Extent) -> tuple[tuple[int, ...], ...]:
        """Of the tables, in their order."""
        rows, tiles, sequences, blocks, depth = extent
        return (rows,), (tiles, 4), (sequences, blocks), (rows, depth), (rows,), (rows,)


class Loaded:
    """int32 tables that lie in one buffer, here and on a device, so that one copy loads them all."""

    def __init__(self, shapes: Many[tuple[int, ...]], device: torch.device) -> None:
        # every table begins at a multiple of 16 bytes: Triton compiles a kernel of its own for pointers that do not
        ends = np.cumsum([-(-int(np.prod(shape)) // 4) * 4 for shape in shapes])

        def views(buffer: torch.Tensor) -> list[torch.Tensor]:
            parts = zip(buffer.tensor_split(ends[:-1].tolist()), shapes, strict=True)
            return [part[: int(np.prod(shape))].view(shape) for part, shape in parts]

        self._buffer = torch.zeros(ends[-1], dtype=torch.int32, device=device)
        self._host = torch.zeros(ends[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self.there, self.here = views(self._buffer), [view.numpy() for view in views(self._host)]

    def open(self) -> None:
        """Before anything is written here: what was loaded last is there by then."""
        if self._copied is not None:
            self._copied.synchronize()

    def load(self) -> None:
        """Does not wait for the device."""
        self._buffer.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class StepTables(RowTables):
    """Those of one step."""

    def __init__(self, extent: Extent, page_size: int, rows_per_tile: int, device: torch.device) -> None:
        loaded = Loaded(self.shapes(extent), device)
        super().__init__(extent, page_size, rows_per_tile, *loaded.there)
        self._loaded = loaded

    @classmethod
    def of(cls, step: Step, blocks: Many[array[int]], page_size: int, rows_per_tile: int, device: torch.device) -> StepTables:
        """Tables of the very size of one step."""
        tables = cls(Extent.of(step, blocks, rows_per_tile), page_size, rows_per_tile, device)
        tables.load(step, blocks)
        return tables

    def load(self, step: Step, blocks: Many[array[int]]) -> None:
        """Describe this staged step. Raises ValueError where it does not fit. Does not wait for the device, but for the copy of
        what was loaded before."""
        self._loaded.open()
        try:
            self._describe(step, blocks)
        except (ValueError, IndexError) as error:
            raise ValueError("the step is larger than the tables it is loaded into") from error
        self._loaded.load()

    def _describe(self, step: Step, blocks: Many[array[int]]) -> None:
        positions, tiles, pages, tail, destinations, token_ids = self._loaded.here
        rows, size = len(step.tokens), self.page_size
        token_ids[:rows] = step.tokens
        positions[:rows], positions[rows:] = step.row_positions, -1
        destinations[rows:] = NOWHERE * size
        found: list[tuple[int, ...]] = []
        for number, (segment, held) in enumerate(zip(step.segments, blocks, strict=True)):
            pages[number, : len(held)] = held
            destinations[segment.low : segment.high] = places_of(range(segment.start, segment.end), held, size)
            straight = segment.end if segment.is_chain else segment.start + segment.chain
            found += [(number, first, count, straight) for first, count in _tiles(segment, self.rows_per_tile)]
            if not segment.is_chain:
                _fill_tail(tail, segment)
        tiles[: len(found)], tiles[len(found) :] = found, 0


def places_of(slots: Iterable[int], blocks: array[int], page_size: int) -> list[int]:
    """Where slots of a sequence lie in pages that are joined end to end."""
    return [blocks[slot // page_size] * page_size + slot % page_size for slot in slots]


def _depth(segment: Segment) -> int:
    """Levels below the root whose slots have to be told, at least 1: those of a chain lie in order."""
    return 1 if segment.tree is None or segment.is_chain else max(segment.tree.depth)


def _tiles(segment: Segment, rows_per_tile: int) -> list[tuple[int, int]]:
    """(first row, rows) of each tile; rows of the chain and nodes of a tree below it never share one, for their keys are found
    unlike."""
    border = segment.high if segment.is_chain else segment.low + segment.chain
    tiles = []
    for low, high in ((segment.low, border), (border, segment.high)):
        tiles += [(first, min(rows_per_tile, high - first)) for first in range(low, high, rows_per_tile)]
    return tiles


def _fill_tail(tail: np.ndarray, segment: Segment) -> None:
    """Write the tails of the segment's nodes: a node's is its parent's and its own slot."""
    tree = segment.tree
    assert tree is not None
    root = segment.low + segment.chain - 1
    for node in range(1, len(tree)):
        depth = tree.depth[node]
        tail[root + node, : depth - 1] = tail[root + tree.parents[node], : depth - 1]
        tail[root + node, depth - 1] = segment.slot(node)
