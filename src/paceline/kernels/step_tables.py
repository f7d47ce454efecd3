"""StepTables: where on the device each row of a step finds its keys, built once per step and read by every layer.

A row sees one key per position, from its window's edge up to its own position, and a position's key lies in one slot. For the
committed prefix and a chain, slot and position are equal; below the root of a tree that forks they differ, because siblings share
a position. So a row has a short list, its `tail`: the slots of its ancestors below the root and of itself, by depth. That list
replaces the mask. It is N x depth at most, chains need none, and a kernel that walks positions reads the same keys in the same
order whether they are committed or staged: only the address differs.

Everything is int32 in one buffer, so that a step costs one asynchronous copy to the device; a captured graph keeps its buffer and
`load` refills it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from paceline.kernels.work_items import ALONE, ITEM, Division, count_of, lay_out
from paceline.step import Segment, Step

NOWHERE = 0
"""The page that no sequence owns (`cache.paged` never allocates it): a bucket's padding rows write there."""


def rounded(number: int, least: int) -> int:
    """`number` rounded up to a power of two, and at least `least`."""
    return max(1 << (number - 1).bit_length(), least)


class Extent(NamedTuple):
    """How large the tables are. A captured graph serves every step whose own extent fits.

    rows: T. items: programs that attend, for each of the key heads. sequences: S. blocks: pages of the longest sequence.
    depth: levels of the deepest tree below its root, at least 1.
    """

    rows: int
    items: int
    sequences: int
    blocks: int
    depth: int

    @classmethod
    def of(cls, step: Step, blocks: Many[array[int]], page_size: int, division: Division, least: Extent | None = None) -> Extent:
        """The smallest that holds this step. blocks: per segment the pages of its sequence, in order of slots.

        least: if given, every number is rounded up to a power of two, and no less than this has: few graphs serve all steps.
        """
        segments, pages = step.segments, max([len(held) for held in blocks])
        found = cls(len(step.tokens), 1, len(segments), pages, max([_depth(segment) for segment in segments]))
        # the number of walked splits depends on the size of the tables, which may be larger than the step
        found = found if least is None else found.bucketed(least)
        found = found._replace(items=count_of(division.runs(segments, found.walked(page_size, division)[0])))
        return found if least is None else found.bucketed(least)

    def bucketed(self, least: Extent) -> Extent:
        """Every number rounded up to a power of two, and at least that of `least`."""
        return Extent(*map(rounded, self, least))

    def walked(self, page_size: int, division: Division) -> tuple[int, int]:
        """How many splits the first program walks, and how many parts the longest sequence then has."""
        return division.walked(self.rows, self.sequences, self.blocks * page_size)


SMALLEST = Extent(rows=ALONE[1], items=32, sequences=ALONE[0], blocks=16, depth=16)
"""Smallest extent of a graph. A library chooses its algorithm by the number of rows, and algorithms differ in the last bits: with
this minimum, all smaller steps use the same one, so that a verified row equals the row decoded alone. The cost is small, as the
same weights are read. The items suffice for four decoding sequences of 1024 tokens, or for one and a draft of a few rows."""


@dataclass
class RowTables:
    """Where rows find their keys, in the form that kernels read, all int32 on the device.

    positions: [T], -1 for padding. items: [items, 5]: sequence, first row, rows, straight (slots below it are positions), part of
    the positions; padding items have 0 rows. blocks: [S, blocks], page ids. tail: [T, depth]. destinations: [T], page *
    page_size + place of the row's own key. token_ids: [T].
    """

    extent: Extent
    page_size: int
    division: Division
    positions: torch.Tensor
    items: torch.Tensor
    blocks: torch.Tensor
    tail: torch.Tensor
    destinations: torch.Tensor
    token_ids: torch.Tensor

    @staticmethod
    def shapes(extent: Extent) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tables, in their order."""
        rows, items, sequences, blocks, depth = extent
        return (rows,), (items, ITEM), (sequences, blocks), (rows, depth), (rows,), (rows,)

    @property
    def walked(self) -> tuple[int, int]:
        """How many splits the first program walks, and how many parts the longest sequence then has."""
        return self.extent.walked(self.page_size, self.division)


class Loaded:
    """int32 tables in one buffer, on the host (`here`) and on a device (`there`), so that one copy loads them all."""

    def __init__(self, shapes: Many[tuple[int, ...]], device: torch.device) -> None:
        # every table begins at a multiple of 16 bytes: Triton compiles a separate kernel for pointers that do not
        ends = np.cumsum([-(-int(np.prod(shape)) // 4) * 4 for shape in shapes])

        def views(buffer: torch.Tensor) -> list[torch.Tensor]:
            parts = zip(buffer.tensor_split(ends[:-1].tolist()), shapes, strict=True)
            return [part[: int(np.prod(shape))].view(shape) for part, shape in parts]

        self._buffer = torch.zeros(ends[-1], dtype=torch.int32, device=device)
        self._host = torch.zeros(ends[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self.there, self.here = views(self._buffer), [view.numpy() for view in views(self._host)]

    def open(self) -> None:
        """Wait until the previous copy has finished; to be called before the host tables are written."""
        if self._copied is not None:
            self._copied.synchronize()

    def load(self) -> None:
        """Copy the host tables to the device, without waiting for it."""
        self._buffer.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class StepTables(RowTables):
    """The tables of one step."""

    def __init__(self, extent: Extent, page_size: int, division: Division, device: torch.device) -> None:
        loaded = Loaded(self.shapes(extent), device)
        super().__init__(extent, page_size, division, *loaded.there)
        self._loaded, self._walked = loaded, self.walked[0]

    @classmethod
    def of(cls, step: Step, blocks: Many[array[int]], page_size: int, division: Division, device: torch.device) -> StepTables:
        """Tables exactly as large as one step."""
        tables = cls(Extent.of(step, blocks, page_size, division), page_size, division, device)
        tables.load(step, blocks)
        return tables

    def load(self, step: Step, blocks: Many[array[int]]) -> None:
        """Describe this staged step. Raises ValueError if it does not fit. Waits only for the previous load's copy to the
        device."""
        self._loaded.open()
        try:
            self._describe(step, blocks)
        except (ValueError, IndexError) as error:
            raise ValueError("the step is larger than the tables it is loaded into") from error
        self._loaded.load()

    def _describe(self, step: Step, blocks: Many[array[int]]) -> None:
        positions, items, pages, tail, destinations, token_ids = self._loaded.here
        rows, size = len(step.tokens), self.page_size
        token_ids[:rows] = step.tokens
        positions[:rows], positions[rows:] = step.row_positions, -1
        places = list[int]()
        for number, (segment, held) in enumerate(zip(step.segments, blocks, strict=True)):
            pages[number, : len(held)] = held
            places += places_of(range(segment.start, segment.end), held, size)
            if not segment.is_chain:
                _fill_tail(tail, segment)
        destinations[:rows], destinations[rows:] = places, NOWHERE * size
        lay_out(self.division.runs(step.segments, self._walked), items)


def places_of(slots: Iterable[int], blocks: array[int], page_size: int) -> list[int]:
    """Indices of a sequence's slots in the pool of pages, seen as one array of slots."""
    return [blocks[slot // page_size] * page_size + slot % page_size for slot in slots]


def _depth(segment: Segment) -> int:
    """Levels below the root whose slots must be listed, at least 1; those of a chain are in order."""
    return 1 if segment.tree is None or segment.is_chain else max(segment.tree.depth)


def _fill_tail(tail: np.ndarray, segment: Segment) -> None:
    """Write the tails of the segment's nodes: a node's tail is its parent's plus its own slot."""
    tree = segment.tree
    assert tree is not None
    root, deepest = segment.slot(0), max(tree.depth)
    paths: list[list[int]] = [[]]
    for slot, parent in enumerate(tree.parents[1:], root + 1):
        paths.append([*paths[parent], slot])
    tail[segment.low + segment.chain : segment.high, :deepest] = [path + [0] * (deepest - len(path)) for path in paths[1:]]
