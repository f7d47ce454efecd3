"""The tables that tell a kernel where each row's keys lie; they need neither Triton nor a device."""

from __future__ import annotations

import pytest
import torch

from paceline.cache.paged import PagedCache
from paceline.kernels.step_tables import Extent, StepTables
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree
from stepping import missing, sequence


def test_tables_say_where_the_keys_lie() -> None:
    """The step of docs/architecture.md: a chunk, a plain decode and a tree whose nodes are r, x, y and z below x."""
    owners = [sequence(0, range(8)), sequence(1, range(10)), sequence(2, range(13))]
    cache, tree = PagedCache(20, 4), DraftTree((12, 20, 21, 22), (-1, 0, 0, 1))
    for owner, held in zip(owners, (4, 9, 12), strict=True):
        cache.stage(Step.of([Feed(owner, 0, tuple(owner.tokens[:held]))]))
        cache.commit([Verdict()])
    trees = [None, DraftTree.root(9), tree]
    step = Step.of([missing(cache, owner, tree) for owner, tree in zip(owners, trees, strict=True)])
    cache.stage(step)
    blocks = [cache.blocks(owner.key) for owner in owners]
    tables = StepTables.of(step, blocks, 4, rows_per_tile=2, device=torch.device("cpu"))
    assert tables.extent == Extent(rows=9, tiles=6, sequences=3, blocks=4, depth=2)
    assert tables.extent.bucketed(Extent(1, 1, 1, 1, 1)) == Extent(16, 8, 4, 4, 2)
    assert tables.extent.bucketed(Extent(64, 1, 2, 8, 2)) == Extent(64, 8, 4, 8, 2)
    assert tables.positions.tolist() == [4, 5, 6, 7, 9, 12, 13, 13, 14]
    assert tables.tiles.tolist() == [[0, 0, 2, 8], [0, 2, 2, 8], [1, 4, 1, 10], [2, 5, 1, 13], [2, 6, 2, 13], [2, 8, 1, 13]]
    assert tables.tail.tolist() == [*[[0, 0]] * 6, [13, 0], [14, 0], [13, 15]]
    slots = [4, 5, 6, 7, 9, 12, 13, 14, 15]
    owners_of_rows = [0, 0, 0, 0, 1, 2, 2, 2, 2]
    places = [blocks[owner][slot // 4] * 4 + slot % 4 for owner, slot in zip(owners_of_rows, slots, strict=True)]
    assert tables.destinations.tolist() == places
    with pytest.raises(ValueError, match="larger than the tables"):
        StepTables(tables.extent._replace(depth=1), 4, 2, torch.device("cpu")).load(step, blocks)


def test_larger_tables_pad_with_rows_that_see_nothing() -> None:
    owner, cache = sequence(0, range(3)), PagedCache(20, 4)
    step = Step.of([missing(cache, owner)])
    cache.stage(step)
    tables = StepTables(Extent(5, 3, 2, 4, 1), 4, 2, torch.device("cpu"))
    for _ in range(2):
        tables.load(step, [cache.blocks(0)])
        assert tables.positions.tolist() == [0, 1, 2, -1, -1]
        assert tables.tiles.tolist() == [[0, 0, 2, 3], [0, 2, 1, 3], [0, 0, 0, 0]]
        assert tables.destinations.tolist()[3:] == [0, 0], "the page that nobody owns"
    assert all(part.data_ptr() % 16 == tables.positions.data_ptr() % 16 for part in (tables.tiles, tables.blocks, tables.tail))
