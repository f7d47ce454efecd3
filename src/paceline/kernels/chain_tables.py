"""ChainTables: what a whole draft of chains needs on the device, told before its first forward.

Only the tokens of a draft are not known beforehand; where each level's rows lie, what they see and what noise they are chosen by
follows from the text. So all levels run without the host: each leaves its tokens where the next one reads them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch

from paceline import noise
from paceline.kernels.step_tables import NOWHERE, Extent, Loaded, RowTables, places_of
from paceline.sequence import Sequence
from paceline.step import Step

_LOW, _HIGH, _TEMPERATURE = range(3)
_POSITIONS, _TILES, _DESTINATIONS, _TOKEN_IDS = range(4)


@dataclass(frozen=True)
class Level:
    """tables: of its rows. choices: int32 [S, 3], by what the tokens of each sequence are chosen: the key of the position's noise
    as two words, and the bits of the temperature as float32."""

    tables: RowTables
    choices: torch.Tensor


class ChainTables:
    """levels: the first feeds what a cache lacks, each of the others one drafted token of every sequence. wanted: int32 [S], the
    rows of the first whose logits count.

    extent: of the first. count: levels at most.
    """

    def __init__(self, extent: Extent, count: int, page_size: int, rows_per_tile: int, device: torch.device) -> None:
        self._page_size, self._rows_per_tile = page_size, rows_per_tile
        wide = extent.sequences
        first, later = RowTables.shapes(extent), ((wide,), (wide, 4), (wide,), (wide,))
        self._loaded = Loaded([*first, (wide,), (count, wide, 3), *later * (count - 1)], device)
        there, here = self._loaded.there, self._loaded.here
        self.wanted = there[len(first)]
        tables = [RowTables(extent, page_size, rows_per_tile, *there[: len(first)])]
        # of chains nobody reads a tail
        tail = torch.zeros(wide, 1, dtype=torch.int32, device=device)
        begins = range(len(first) + 2, len(there), len(later))
        for positions, tiles, destinations, token_ids in (there[begin : begin + len(later)] for begin in begins):
            tables.append(
                RowTables(
                    extent._replace(rows=wide, tiles=wide, depth=1), page_size, rows_per_tile,
                    positions, tiles, tables[0].blocks, tail, destinations, token_ids,
                )
            )  # fmt: skip
        self.levels = [Level(*pair) for pair in zip(tables, there[len(first) + 1], strict=True)]
        self._first, self._wanted, self._choices = here[: len(first)], here[len(first)], here[len(first) + 1]
        self._later = [here[begin : begin + len(later)] for begin in begins]

    def load(self, step: Step, blocks: Many[array[int]]) -> None:
        """Describe a staged step whose trees are chains of as many nodes as are to be fed; levels behind the longest are left as
        they were. Does not wait for the device, but for the copy of what was loaded before."""
        self._loaded.open()
        positions, tiles, pages, _, destinations, token_ids = self._first
        positions[:], tiles[:], destinations[:], self._wanted[:] = -1, 0, NOWHERE * self._page_size, 0
        count = max([segment.nodes for segment in step.segments])
        for level in self._later[: count - 1]:
            level[_POSITIONS][:], level[_TILES][:], level[_DESTINATIONS][:] = -1, 0, NOWHERE * self._page_size
        row = tile = 0
        for number, (segment, held) in enumerate(zip(step.segments, blocks, strict=True)):
            chain, end = segment.chain, row + segment.chain
            pages[number, : len(held)] = held
            places = places_of(range(segment.start, segment.end), held, self._page_size)
            token_ids[row:end] = step.tokens[segment.low : segment.low + chain]
            positions[row:end], destinations[row:end] = range(segment.start, segment.start + chain), places[:chain]
            for first in range(row, end, self._rows_per_tile):
                tiles[tile] = number, first, min(self._rows_per_tile, end - first), segment.end
                tile += 1
            self._wanted[number] = end - 1
            for place, level in enumerate(self._later[: segment.nodes - 1], chain):
                level[_POSITIONS][number], level[_DESTINATIONS][number] = segment.start + place, places[place]
                level[_TILES][number] = number, number, 1, segment.end
            _choose_by(self._choices[:count, number], segment.sequence)
            row = end
        self._loaded.load()


def _choose_by(choices: np.ndarray, sequence: Sequence) -> None:
    """Note by what the tokens of a sequence are chosen, level by level. choices: int32 [levels, 3]."""
    temperature, root = sequence.params.temperature, len(sequence.tokens)
    choices[:, _TEMPERATURE] = np.float32(temperature).view(np.int32)
    if temperature > 0.0:
        keys = [noise.key(sequence.seed, root + level) for level in range(len(choices))]
        words = np.array([(key & 0xFFFFFFFF, key >> 32) for key in keys], np.uint32)
        choices[:, _LOW : _HIGH + 1] = words.view(np.int32)
