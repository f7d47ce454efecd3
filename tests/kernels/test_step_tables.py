"""The tables that locate each row's keys for a kernel; they need neither Triton nor a device."""

from __future__ import annotations

from operator import itemgetter

import pytest
import torch

from paceline.cache.paged import PagedCache
from paceline.kernels.chain_tables import ChainTables, extent_of
from paceline.kernels.step_tables import SMALLEST, Extent, StepTables
from paceline.kernels.work_items import Division
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree
from stepping import missing, sequence

DIVISION = Division(rows_per_tile=2, kv_heads=1, near=7, near_splits=2, split=21, few=128)


def test_tables_say_where_the_keys_lie() -> None:
    """The step of docs/architecture.md: a chunk, a plain decode and a tree with the nodes r, x, y, and z below x."""
    owners = [sequence(0, range(8)), sequence(1, range(10)), sequence(2, range(13))]
    cache, tree = PagedCache(20, 4), DraftTree((12, 20, 21, 22), (-1, 0, 0, 1))
    for owner, held in zip(owners, (4, 9, 12), strict=True):
        cache.stage(Step.of([Feed(owner, 0, tuple(owner.tokens[:held]))]))
        cache.commit([Verdict()])
    trees = [None, DraftTree.root(9), tree]
    step = Step.of([missing(cache, owner, tree) for owner, tree in zip(owners, trees, strict=True)])
    cache.stage(step)
    blocks = [cache.blocks(owner.key) for owner in owners]
    tables = StepTables.of(step, blocks, 4, DIVISION, torch.device("cpu"))
    assert tables.extent == Extent(rows=9, items=13, sequences=3, blocks=4, depth=2)
    assert Extent.of(step, blocks, 4, DIVISION, Extent(1, 1, 1, 1, 1)) == Extent(16, 16, 4, 4, 2)
    assert Extent.of(step, blocks, 4, DIVISION, Extent(64, 1, 2, 8, 2)) == Extent(64, 16, 4, 8, 2)
    assert tables.positions.tolist() == [4, 5, 6, 7, 9, 12, 13, 13, 14]
    assert tables.walked == (1, 3)
    chunk, plain = [[0, 0, 2, 8, 0], [0, 2, 2, 8, 0], [0, 2, 2, 8, 1]], [[1, 4, 1, 10, 0], [1, 4, 1, 10, 1]]
    root, straight = [[2, 5, 1, 13, part] for part in range(2)], [[2, 6, 2, 13, 0], [2, 8, 1, 13, 0]]
    parting = [[2, row, 1, 13, 1] for row in (6, 7, 8)] + [[2, 8, 1, 13, 2]]
    # items of one part are adjacent
    assert tables.items.tolist() == sorted([*chunk, *plain, *root, *straight, *parting], key=itemgetter(4))
    assert tables.tail.tolist() == [*[[0, 0]] * 6, [13, 0], [14, 0], [13, 15]]
    slots = [4, 5, 6, 7, 9, 12, 13, 14, 15]
    owners_of_rows = [0, 0, 0, 0, 1, 2, 2, 2, 2]
    places = [blocks[owner][slot // 4] * 4 + slot % 4 for owner, slot in zip(owners_of_rows, slots, strict=True)]
    assert tables.destinations.tolist() == places
    with pytest.raises(ValueError, match="larger than the tables"):
        StepTables(tables.extent._replace(depth=1), 4, DIVISION, torch.device("cpu")).load(step, blocks)
    with pytest.raises(ValueError, match="larger than the tables"):
        StepTables(tables.extent._replace(items=12), 4, DIVISION, torch.device("cpu")).load(step, blocks)


def test_larger_tables_pad_with_rows_that_see_nothing() -> None:
    owner, cache = sequence(0, range(3)), PagedCache(20, 4)
    step = Step.of([missing(cache, owner)])
    cache.stage(step)
    tables = StepTables(Extent(5, 3, 2, 4, 1), 4, DIVISION, torch.device("cpu"))
    for _ in range(2):
        tables.load(step, [cache.blocks(0)])
        assert tables.positions.tolist() == [0, 1, 2, -1, -1]
        assert tables.items.tolist() == [[0, 0, 2, 3, 0], [0, 2, 1, 3, 0], [0, 0, 0, 0, 0]]
        assert tables.destinations.tolist()[3:] == [0, 0], "the unused page"
    with pytest.raises(ValueError, match="larger than the tables"):
        StepTables(Extent(5, 1, 2, 4, 1), 4, DIVISION, torch.device("cpu")).load(step, [cache.blocks(0)])
    assert all(part.data_ptr() % 16 == tables.positions.data_ptr() % 16 for part in (tables.items, tables.blocks, tables.tail))


LLAMA = Division(rows_per_tile=8, kv_heads=8, near=128, near_splits=16, split=512, few=128)


def staged(lengths: list[int], tree: DraftTree | None = None) -> tuple[Step, PagedCache]:
    """Sequences of these lengths whose roots are not cached yet, with a draft each."""
    cache = PagedCache(1, 64, grows=True)
    owners = [sequence(key, [0] * length) for key, length in enumerate(lengths)]
    cache.stage(Step.of([missing(cache, owner, upto=len(owner.tokens) - 1) for owner in owners]))
    cache.commit([Verdict()] * len(owners))
    step = Step.of([missing(cache, owner, tree or DraftTree.root(0)) for owner in owners])
    cache.stage(step)
    return step, cache


def fork_of(rows: int) -> DraftTree:
    """A root and rows - 1 nodes, two children each."""
    return DraftTree(tuple(range(rows)), tuple((node - 1) // 2 if node else -1 for node in range(rows)))


def test_a_batch_of_unlike_lengths_has_no_more_items_than_work() -> None:
    """The items of one long text do not multiply with the number of texts beside it."""
    lengths = [30_000, *[100] * 7]
    step, cache = staged(lengths)
    tables = StepTables.of(step, cache.blocks_of(step), 64, LLAMA, torch.device("cpu"))
    assert tables.walked == (1, 16 + 55)
    assert tables.extent.items == 16 + 55 + 7
    assert [sum(items[0] == number for items in tables.items.tolist()) for number in range(8)] == [71, *[1] * 7]
    crowd, its_cache = staged([30_000, *[100] * 63])
    tables = StepTables.of(crowd, its_cache.blocks_of(crowd), 64, LLAMA, torch.device("cpu"))
    assert tables.walked == (16, 56)
    assert tables.extent.items == 56 + 63
    assert tables.items[tables.items[:, 0] == 0, 4].tolist() == list(range(56))


def test_a_few_texts_grow_within_one_extent() -> None:
    found = set[Extent]()
    for length in (2, 127, 128, 129, 700, 1023):
        step, cache = staged([length] * 4)
        found.add(Extent.of(step, cache.blocks_of(step), 64, LLAMA, SMALLEST))
    assert found == {SMALLEST}


@pytest.mark.parametrize(("length", "count"), [(60, 5), (127, 5), (128, 9), (2040, 12), (2100, 40)])
def test_every_row_has_every_part_once(length: int, count: int) -> None:
    """However rows share tiles, before and behind the branching of a draft, for few sequences and many."""
    for sequences in (1, 3, 20):
        step, cache = staged([length] * sequences, fork_of(count))
        tables = StepTables.of(step, cache.blocks_of(step), 64, LLAMA, torch.device("cpu"))
        walked, parts = tables.walked
        assert (walked > 1) == (sequences == 20 and length > 100)
        told = [(row, part) for _, first, rows, _, part in tables.items.tolist() for row in range(first, first + rows)]
        expected = [
            (row, part) for row, position in enumerate(step.row_positions) for part in range(LLAMA.parts(position, walked))
        ]
        assert len(told) == len(set(told))
        assert set(told) >= set(expected)
        # a tile that walks several splits extends to the last of its rows
        assert set(told) == set(expected) or walked > 1
        assert max(part for _, part in told) < parts
        shared = [(rows, straight, part) for _, _, rows, straight, part in tables.items.tolist() if rows > 1]
        assert walked > 1 or all(part < LLAMA.parts(straight, walked) - 1 for _, straight, part in shared)


def test_one_program_walks_several_splits_where_tiles_are_many() -> None:
    one, many = Extent(64, 64, 8, 16, 16), Extent(64, 64, 64, 64, 16)
    # the smallest bucket may contain a single tile
    assert one.walked(64, LLAMA._replace(kv_heads=32, rows_per_tile=1)) == (1, 8)
    assert many.walked(64, LLAMA._replace(kv_heads=1)) == (1, 20)
    assert many.walked(64, LLAMA) == (16, 5)
    assert many._replace(blocks=16).walked(64, LLAMA) == (8, 1)
    assert Extent(2048, 256, 1, 64, 1).walked(64, LLAMA) == (20, 1)


def test_far_splits_are_walked_where_they_would_leave_too_much_to_merge() -> None:
    """Behind a text of 262,144 tokens, beside another sequence."""
    splits, chunk = 16 + (262_144 - 2048) // 512, Extent(512, 1024, 2, 4096, 1)
    assert chunk._replace(rows=256).walked(64, LLAMA) == (16, splits - 15)
    assert chunk.walked(64, LLAMA) == (splits - 255, 256)
    assert chunk._replace(sequences=1).walked(64, LLAMA) == (splits, 1)
    assert chunk._replace(rows=1 << 20).walked(64, LLAMA) == (splits, 1)


@pytest.mark.parametrize("lengths", [[120, 127, 20], [2047], [100] * 20])
def test_a_level_of_a_chain_has_the_items_of_its_rows(lengths: list[int]) -> None:
    depth = 12
    step, cache = staged(lengths, DraftTree.chain(0, [0] * (depth - 1), "test"))
    blocks = cache.blocks_of(step)
    extent = extent_of(step, blocks, 64, LLAMA, Extent(16, 8, 1, 16, 1))
    assert all(number & (number - 1) == 0 for number in extent)
    tables = ChainTables(extent, depth, 64, LLAMA, torch.device("cpu"))
    for _ in range(2):
        tables.load(step, blocks)
        for place, level in enumerate(tables.levels):
            walked, _ = level.tables.walked
            expected = [
                [number, number, 1, segment.end, part]
                for number, segment in enumerate(step.segments)
                for part in range(LLAMA.parts(segment.start + place, walked))
            ]
            items = level.tables.items.tolist()
            assert items[: len(expected)] == sorted(expected, key=itemgetter(4))
            assert not any(map(any, items[len(expected) :]))
            assert level.tables.positions[: len(lengths)].tolist() == [length - 1 + place for length in lengths]
