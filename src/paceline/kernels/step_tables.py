"""StepTables: where on the device each row of a step finds its keys, built once per step and read by every layer.

A row sees one key per position, from its window's edge up to its own position, and a position's key lies in one slot. For the
committed prefix and the chain slot and position agree; below the root they part, because siblings share a position. So a row
carries a short list, its `tail`: the slots of its ancestors below the root and of itself, by depth. That list replaces the
mask. It is N x depth at most, chains need none, and a kernel that walks positions reads the same keys in the same order
whether they are committed or staged: only the address differs.

Everything is int32 in one buffer, so that a step costs one copy to the device, which does not wait; a captured graph keeps its
buffer and `load` fills it anew.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from dataclasses import astuple, dataclass

import numpy as np
import torch

from paceline.step import Segment, Step

NOWHERE = 0
"""The page that no sequence owns (`cache.paged` leaves it out): rows that only pad a bucket write there."""


@dataclass(frozen=True)
class Extent:
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
            step.segments[-1].high,
            sum(len(_tiles(segment, rows_per_tile)) for segment in step.segments),
            len(step.segments),
            max(len(pages) for pages in blocks),
            max(max(segment.tree.depth) if segment.tree else 0 for segment in step.segments) or 1,
        )

    def bucketed(self, least: Extent) -> Extent:
        """Every number rounded up to a power of two, and no less than `least` has: few graphs serve all steps."""
        pairs = zip(astuple(self), astuple(least), strict=True)
        return Extent(*(max(1 << (number - 1).bit_length(), smallest) for number, smallest in pairs))

    def holds(self, other: Extent) -> bool:
        return all(mine >= its for mine, its in zip(astuple(self), astuple(other), strict=True))


SMALLEST = Extent(rows=64, tiles=1, sequences=8, blocks=1, depth=16)
"""What a graph is recorded for at least. A library chooses how to multiply by the number of rows, and other ways have other bits:
so many rows and fewer are all multiplied alike, and a verified row is what it is decoded alone. They read the same weights."""


class StepTables:
    """positions: [T], -1 for padding. tiles: [tiles, 4]: sequence, first row, rows, straight (slots below it are positions).

    blocks: [S, blocks], page ids. tail: [T, depth]. destinations: [T], page * page_size + place of the row's own key. All of
    them int32 views of one buffer on the device.
    """

    def __init__(self, extent: Extent, page_size: int, rows_per_tile: int, device: torch.device) -> None:
        self.extent, self.page_size, self.rows_per_tile = extent, page_size, rows_per_tile
        self._shapes = (
            (extent.rows,),
            (extent.tiles, 4),
            (extent.sequences, extent.blocks),
            (extent.rows, extent.depth),
            (extent.rows,),
        )
        # every table begins at a multiple of 16 bytes: Triton compiles a kernel of its own for pointers that do not
        self._ends = np.cumsum([-(-int(np.prod(shape)) // 4) * 4 for shape in self._shapes])
        self._buffer = torch.zeros(self._ends[-1], dtype=torch.int32, device=device)
        self.positions, self.tiles, self.blocks, self.tail, self.destinations = self._views(self._buffer)

    def _views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        parts = zip(buffer.tensor_split(self._ends[:-1].tolist()), self._shapes, strict=True)
        return [part[: int(np.prod(shape))].view(shape) for part, shape in parts]

    @classmethod
    def of(cls, step: Step, blocks: Many[array[int]], page_size: int, rows_per_tile: int, device: torch.device) -> StepTables:
        """Tables of the very size of one step."""
        tables = cls(Extent.of(step, blocks, rows_per_tile), page_size, rows_per_tile, device)
        tables.load(step, blocks)
        return tables

    def load(self, step: Step, blocks: Many[array[int]]) -> None:
        """Describe this staged step. Raises ValueError where it does not fit. Does not wait for the device."""
        if not self.extent.holds(Extent.of(step, blocks, self.rows_per_tile)):
            raise ValueError("the step is larger than the tables it is loaded into")
        # pinned memory comes from torch's caching allocator, which reuses it only after the copy is done
        host = torch.zeros(self._buffer.shape, dtype=torch.int32, pin_memory=self._buffer.is_cuda)
        positions, tiles, pages, tail, destinations = (view.numpy() for view in self._views(host))
        positions[:] = -1
        destinations[:] = NOWHERE * self.page_size
        tile = 0
        for number, (segment, held) in enumerate(zip(step.segments, blocks, strict=True)):
            positions[segment.low : segment.high] = segment.positions.numpy()
            pages[number, : len(held)] = np.frombuffer(held, dtype=np.int32)
            slots = np.arange(segment.start, segment.end)
            destinations[segment.low : segment.high] = (
                pages[number, slots // self.page_size] * self.page_size + slots % self.page_size
            )
            for first, rows in _tiles(segment, self.rows_per_tile):
                tiles[tile] = number, first, rows, segment.start + segment.chain
                tile += 1
            _fill_tail(tail, segment)
        self._buffer.copy_(host, non_blocking=True)


def _tiles(segment: Segment, rows_per_tile: int) -> list[tuple[int, int]]:
    """(first row, rows) of each tile; rows of the chain and nodes below it never share one, for their keys are found unlike."""
    tiles = []
    border = segment.low + segment.chain
    for low, high in ((segment.low, border), (border, segment.high)):
        tiles += [(first, min(rows_per_tile, high - first)) for first in range(low, high, rows_per_tile)]
    return tiles


def _fill_tail(tail: np.ndarray, segment: Segment) -> None:
    """Write the tails of the segment's nodes: a node's is its parent's and its own slot."""
    tree = segment.tree
    if tree is None:
        return
    root = segment.low + segment.chain - 1
    for node in range(1, len(tree)):
        depth = tree.depth[node]
        tail[root + node, : depth - 1] = tail[root + tree.parents[node], : depth - 1]
        tail[root + node, depth - 1] = segment.slot(node)
