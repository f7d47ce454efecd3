"""ChainTables: all tables of a whole draft of chains, loaded to the device before its first forward pass.

Only the tokens of a draft are unknown beforehand; the positions and slots of each level's rows, the keys they see and their noise
follow from the text. So all levels run without the host: each writes its tokens where the next one reads them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch

from paceline import noise
from paceline.kernels.step_tables import NOWHERE, Extent, Loaded, RowTables, places_of
from paceline.kernels.work_items import ITEM, Division, Run, count_of, lay_out
from paceline.sequence import Sequence
from paceline.step import Step

_LOW, _HIGH, _TEMPERATURE = range(3)
_POSITIONS, _ITEMS, _DESTINATIONS, _TOKEN_IDS = range(4)


@dataclass(frozen=True)
class Level:
    """tables: of its rows. choices: int32 [S, 3], inputs of each sequence's choice: the key of the position's noise as two words,
    and the bits of the float32 temperature."""

    tables: RowTables
    choices: torch.Tensor


class ChainTables:
    """levels: the first feeds the tokens missing from the caches, each other one drafted token of every sequence. wanted: int32
    [S], the rows of the first level whose logits are used.

    extent: of the first level. count: most levels.
    """

    def __init__(self, extent: Extent, count: int, page_size: int, division: Division, device: torch.device) -> None:
        self._page_size, self._division = page_size, division
        wide, after = extent.sequences, _behind(extent)
        first, later = RowTables.shapes(extent), ((wide,), (after.items, ITEM), (wide,), (wide,))
        self._loaded = Loaded([*first, (wide,), (count, wide, 3), *later * (count - 1)], device)
        there, here = self._loaded.there, self._loaded.here
        self.wanted = there[len(first)]
        tables = [RowTables(extent, page_size, division, *there[: len(first)])]
        # chains need no tail
        tail = torch.zeros(wide, 1, dtype=torch.int32, device=device)
        begins = range(len(first) + 2, len(there), len(later))
        for positions, items, destinations, token_ids in (there[begin : begin + len(later)] for begin in begins):
            tables.append(
                RowTables(
                    after, page_size, division, positions, items, tables[0].blocks, tail, destinations, token_ids
                )
            )  # fmt: skip
        self._walked = tuple(one.walked(page_size, division)[0] for one in (extent, after))
        self.levels = [Level(*pair) for pair in zip(tables, there[len(first) + 1], strict=True)]
        self._first, self._wanted, self._choices = here[: len(first)], here[len(first)], here[len(first) + 1]
        self._later = [here[begin : begin + len(later)] for begin in begins]

    def load(self, step: Step, blocks: Many[array[int]]) -> None:
        """Describe a staged step whose trees are chains with as many nodes as are to be fed; levels past the longest chain are
        left unchanged. Waits only for the previous load's copy to the device."""
        self._loaded.open()
        positions, items, pages, _, destinations, token_ids = self._first
        positions[:], destinations[:], self._wanted[:] = -1, NOWHERE * self._page_size, 0
        walked, walked_behind = self._walked
        count = max([segment.nodes for segment in step.segments])
        for place, level in enumerate(self._later[: count - 1], 1):
            level[_POSITIONS][:], level[_DESTINATIONS][:] = -1, NOWHERE * self._page_size
            lay_out(_runs_of(step, place, self._division, walked_behind), level[_ITEMS])
        lay_out(_runs_of(step, 0, self._division, walked), items)
        row = 0
        for number, (segment, held) in enumerate(zip(step.segments, blocks, strict=True)):
            chain, end = segment.chain, row + segment.chain
            pages[number, : len(held)] = held
            places = places_of(range(segment.start, segment.end), held, self._page_size)
            token_ids[row:end] = step.tokens[segment.low : segment.low + chain]
            positions[row:end], destinations[row:end] = range(segment.start, segment.start + chain), places[:chain]
            self._wanted[number] = end - 1
            for place, level in enumerate(self._later[: segment.nodes - 1], chain):
                level[_POSITIONS][number], level[_DESTINATIONS][number] = segment.start + place, places[place]
            _choose_by(self._choices[:count, number], segment.sequence)
            row = end
        self._loaded.load()


def extent_of(step: Step, blocks: Many[array[int]], page_size: int, division: Division, least: Extent) -> Extent:
    """The extent of tables for a staged draft of chains: that of its first level, with room for the items of every other level.
    blocks, least: as in `Extent.of`."""
    rows = sum([segment.chain for segment in step.segments])
    extent = Extent(rows, 1, len(step.segments), max([len(held) for held in blocks]), 1).bucketed(least)
    walked, _ = extent.walked(page_size, division)
    walked_behind, _ = _behind(extent).walked(page_size, division)
    # no level has more items than one in which every sequence is at its end
    most = sum([division.parts(segment.end - 1, walked_behind) for segment in step.segments])
    return extent._replace(items=max(most, count_of(_runs_of(step, 0, division, walked)))).bucketed(least)


def _behind(extent: Extent) -> Extent:
    """The extent of the levels after the first."""
    return extent._replace(rows=extent.sequences, depth=1)


def _runs_of(step: Step, level: int, division: Division, walked: int) -> list[Run]:
    """The runs of attention at a level of a draft."""
    found, row = list[Run](), 0
    for number, segment in enumerate(step.segments):
        start, chain, end = segment.start, segment.chain, segment.end
        if not level:
            found += division.chain(number, row, chain, start, end, walked)
            row += chain
        elif level < segment.nodes:
            found.append((number, number, 1, end, 0, division.parts(start + chain + level - 1, walked)))
    return found


def _choose_by(choices: np.ndarray, sequence: Sequence) -> None:
    """Write the inputs of a sequence's choices, level by level. choices: int32 [levels, 3]."""
    temperature, root = sequence.params.temperature, len(sequence.tokens)
    choices[:, _TEMPERATURE] = np.float32(temperature).view(np.int32)
    if temperature > 0.0:
        keys = [noise.key(sequence.seed, root + level) for level in range(len(choices))]
        words = np.array([(key & 0xFFFFFFFF, key >> 32) for key in keys], np.uint32)
        choices[:, _LOW : _HIGH + 1] = words.view(np.int32)
