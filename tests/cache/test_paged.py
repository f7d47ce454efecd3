"""The paged cache passes the tests of every cache, shares pages between forks until one writes, and raises an error when full.

Source of the invariants: `test_cache`, whose sequences come, grow, are truncated, fork and go.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis.stateful import invariant

from cache.test_cache import Life, Store, grow, marks_of
from lives import both_lengths, live
from paceline.cache import paged
from paceline.cache.dense import DenseCache
from paceline.cache.paged import PagedCache
from paceline.cache.pages import OutOfPages
from paceline.cache.scaled import NARROW, narrowed, widened
from paceline.step import Step, Verdict
from paceline.tree import DraftTree
from stepping import accept, missing, sequence


class Paged(Store):
    """Pages of four slots, so that short texts span several pages."""

    def __init__(self, pages: int = 64, *, grows: bool = False) -> None:
        self.cache: PagedCache = PagedCache(pages, page_size=4, grows=grows)

    @torch.inference_mode()
    def write(self, step: Step, part: float = 1.0) -> None:
        for segment in step.segments:
            rows = torch.tensor(marks_of(segment))
            for layer in range(2 if part == 1.0 else 1):
                keys, values = rows.view(1, -1, 1).repeat(2, 1, 3), rows.view(1, -1, 1).repeat(2, 1, 1) + layer
                seen = self.cache.store(layer, segment, keys, values)
                assert seen[0].shape == (2, segment.end, 3)
                assert seen[1].shape == (2, segment.end, 1)

    def contents(self, key: int) -> list[list[int]]:
        found = []
        if not self.cache.length(key):
            return [[]]
        places = self.cache._flat(key, range(self.cache.length(key)))
        for layer, pages in self.cache._layers.items():
            keys, values = pages.keys.flatten(0, 1)[places], pages.values.flatten(0, 1)[places]
            found += [keys[:, head, column].tolist() for head in range(2) for column in range(3)]
            found += [(values[:, head, 0] - layer).tolist() for head in range(2)]
        return found


class Ample(Paged):
    """Room for four sequences that grow by four tokens in each of 100 steps, beside their drafts."""

    def __init__(self) -> None:
        super().__init__(512)


class PagedLife(Life):
    kind = Ample

    @invariant()
    def every_page_is_free_or_held_as_often_as_it_is_counted(self) -> None:
        cache = self.store.cache
        assert isinstance(cache, PagedCache)
        holders: dict[int, int] = {}
        for held in cache._held.values():
            for page in held.blocks:
                holders[page] = holders.get(page, 0) + 1
        assert dict(cache._pool._holders) == holders
        assert sorted([*cache._pool._free, *holders]) == list(range(1, cache._pool.count + 1))


class Growing(Paged):
    """Starts with two pages, so that it grows while sequences share and move."""

    def __init__(self) -> None:
        super().__init__(2, grows=True)


class GrowingLife(PagedLife):
    kind = Growing


@both_lengths(100, 40)
@pytest.mark.parametrize("life", [PagedLife, GrowingLife])
def test_any_life_leaves_a_prefix_of_the_text(life: type[PagedLife], runs: int, steps: int) -> None:
    live(life, runs, steps)


def test_steps_begin_where_the_cache_ends_and_are_committed_once() -> None:
    store, owner = Paged(), sequence(0, [1, 2, 3])
    step = Step.of([missing(store.cache, owner)])
    store.cache.stage(step)
    store.write(step)
    store.cache.commit([Verdict()])
    with pytest.raises(ValueError, match="cache holds 3"):
        store.cache.stage(step)
    with pytest.raises(ValueError, match="nothing is staged"):
        store.cache.commit([Verdict()])


def test_forks_share_pages_until_one_writes() -> None:
    store, owner = Paged(), sequence(0, range(6))
    grow(store, owner)
    store.cache.fork(0, 1)
    assert store.cache._pool.used == 2
    owner.commit((6,), ())
    grow(store, owner)
    assert store.cache._pool.used == 3, "the full page is still shared, the last one was copied"
    other = sequence(1, [*range(6), 9])
    grow(store, other)
    assert store.cache._pool.used == 3, "a page with no other holder is written in place"
    store.cache.release(0)
    assert store.cache._pool.used == 2
    store.cache.release(1)
    assert store.cache.held_bytes == 0


def test_both_branches_of_a_fork_grow_in_one_step() -> None:
    store, one = Paged(), sequence(0, range(6))
    grow(store, one)
    store.cache.fork(0, 1)
    one.commit((7,), ())
    other = sequence(1, [*range(6), 8])
    step = Step.of([missing(store.cache, one), missing(store.cache, other)])
    store.cache.stage(step)
    store.write(step)
    store.cache.commit([Verdict(), Verdict()])
    pages = [set(store.cache.blocks(key)) for key in (0, 1)]
    assert len(pages[0] & pages[1]) == 1
    assert store.cache._pool.used == 3


def test_a_full_cache_says_so_and_stays_as_it_was() -> None:
    store, one, other = Paged(pages=3), sequence(0, range(6)), sequence(1, range(5))
    grow(store, one)
    before = store.contents(0)
    with pytest.raises(OutOfPages, match=r"2 more pages .* only 1 are free") as full:
        store.cache.stage(Step.of([missing(store.cache, other)]))
    assert (full.value.needed, full.value.free) == (2, 1)
    assert store.cache.length(1) == 0
    assert store.contents(0) == before
    store.cache.release(0)
    grow(store, other)
    assert store.cache._pool.free == 1


def test_a_pool_that_may_grow_has_room_for_a_step_of_any_size() -> None:
    store, one, other = Paged(pages=3, grows=True), sequence(0, range(6)), sequence(1, range(100))
    grow(store, one)
    before = store.contents(0)
    grow(store, other)
    assert store.contents(0) == before
    assert store.cache._pool.count >= 2 + 25
    assert store.cache._pool.free == store.cache._pool.count - 27
    store.cache.release(1)
    store.cache.release(0)
    assert store.cache.held_bytes == 0


def test_what_was_drafted_in_vain_gives_its_pages_back() -> None:
    store, owner = Paged(), sequence(0, range(4))
    grow(store, owner)
    owner.commit((4,), ())
    tree = DraftTree.chain(4, range(10, 20), "test")
    step = Step.of([missing(store.cache, owner, tree)])
    store.cache.stage(step)
    assert len(store.cache.blocks(0)) == 4
    store.write(step)
    store.cache.commit([accept(tree, (), 5)])
    assert len(store.cache.blocks(0)) == 2


def test_it_holds_the_very_numbers_of_dense_slabs() -> None:
    tree = DraftTree.of_paths(8, [(1, 2), (3, 4), (1, 5)], "test", 9)
    stores: list[DenseCache | PagedCache] = [DenseCache(), PagedCache(8, page_size=4)]
    seen = []
    for cache in stores:
        owner, numbers = sequence(0, range(9)), torch.Generator().manual_seed(0)
        for path, then in ((tree.path(4), 7), ((), 0)):
            step = Step.of([missing(cache, owner, tree if path else DraftTree.root(owner.root))])
            cache.stage(step)
            rows = torch.randn(2, len(step.token_ids), 5, generator=numbers)
            seen.append([found.clone() for found in cache.store(0, step.segments[0], rows, rows[..., :3])])
            verdict = accept(tree, path, then) if path else Verdict()
            cache.commit([verdict])
            owner.commit(verdict.tokens, ())
    for dense, pages in zip(seen[:2], seen[2:], strict=True):
        assert torch.equal(dense[0], pages[0])
        assert torch.equal(dense[1], pages[1])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_rows_are_rounded_one_by_one(dtype: torch.dtype) -> None:
    rows = torch.randn(7, 2, 16, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 7)[:, None, None]
    rows[3] = 0
    narrow, scales = narrowed(rows, dtype)
    again = widened(narrow, scales, torch.float32)
    assert torch.equal(again[3], rows[3])
    assert bool(((again - rows).abs() <= rows.abs().amax(-1, keepdim=True) / (14 if dtype is torch.float8_e4m3fn else 250)).all())
    for row in range(7):
        alone, scale = narrowed(rows[row], dtype)
        assert torch.equal(alone.float(), narrow[row].float())
        assert torch.equal(scale, scales[row])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_narrow_cache_returns_what_it_keeps(dtype: torch.dtype) -> None:
    cache, owner = PagedCache(8, page_size=4, narrow=dtype), sequence(0, range(6))
    step = Step.of([missing(cache, owner)])
    cache.stage(step)
    rows = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(2))
    keys, values = cache.store(0, step.segments[0], rows, -rows)
    assert keys.dtype is torch.float32
    assert torch.equal(keys, widened(*narrowed(rows, dtype), torch.float32))
    assert torch.equal(values, -keys)


def test_pages_and_formats_are_checked() -> None:
    with pytest.raises(ValueError, match="power of two"):
        PagedCache(4, page_size=12)
    with pytest.raises(ValueError, match="float8_e4m3fn or int8"):
        PagedCache(4, narrow=torch.float16)


def test_without_memory_for_twice_as_many_pages_there_are_as_many_as_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, one, other = Paged(pages=4, grows=True), sequence(0, range(16)), sequence(1, range(9))
    grow(store, one)
    before, enlarged, counts, moves = store.contents(0), paged._enlarged, list[int](), store.cache.moves

    def short_of_memory(pages: torch.Tensor, count: int) -> torch.Tensor:
        counts.append(count)
        if count > most:
            raise torch.OutOfMemoryError
        return enlarged(pages, count)

    monkeypatch.setattr(paged, "_enlarged", short_of_memory)
    most = 7
    with pytest.raises(OutOfPages) as full:
        store.cache.stage(Step.of([missing(store.cache, other)]))
    assert (full.value.needed, full.value.free, full.value.slots) == (3, 0, 16)
    assert counts == [9, 8]
    assert store.contents(0) == before
    assert store.cache.length(1) == store.cache._pool.free == 0
    assert store.cache.moves == moves, "recorded graphs of these stores are still valid"
    most = 8
    grow(store, other)
    assert counts == [9, 8, 9, 8, 8, 8, 8], "9 fails for the first of four stores, then 8 succeeds for each"
    assert store.cache.moves == moves + 1
    assert store.contents(0) == before
    assert store.cache._pool.free == 0


def test_a_pool_near_the_end_of_memory_does_not_grow_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, owner = PagedCache(256, 4, grows=True), sequence(0, range(1200))
    cache.reserve(0, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
    monkeypatch.setattr(cache, "_affordable", lambda: 0)
    for end in range(1024, 1089, 4):
        cache.stage(Step.of([missing(cache, owner, upto=end)]))
        cache.commit([Verdict()])
    assert cache._pool.count == 272
    assert cache.moves == 4


def test_a_pool_that_cannot_grow_halves_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, owner, enlarged, counts = PagedCache(16, 4, grows=True), sequence(0, range(80)), paged._enlarged, list[int]()
    cache.reserve(0, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))

    def short_of_memory(pages: torch.Tensor, count: int) -> torch.Tensor:
        counts.append(count)
        if count > 22:
            raise torch.OutOfMemoryError
        return enlarged(pages, count)

    monkeypatch.setattr(paged, "_enlarged", short_of_memory)
    cache.stage(Step.of([missing(cache, owner, upto=68)]))
    assert counts == [33, 25, 21, 21]
    assert cache._pool.count == 20


@pytest.mark.parametrize("room", range(18, 60, 3))
def test_a_pool_grows_as_far_as_memory_goes(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """room: pages of single stores that fit in memory, including the ones being copied."""
    cache, enlarged = PagedCache(2, 4, grows=True), paged._enlarged

    def held_pages() -> int:
        return sum(len(store) for layer in cache._layers.values() for store in layer.stores)

    def within_memory(pages: torch.Tensor, count: int) -> torch.Tensor:
        if held_pages() + count > room:
            raise torch.OutOfMemoryError
        return enlarged(pages, count)

    monkeypatch.setattr(paged, "_enlarged", within_memory)
    for layer in range(2):
        cache.reserve(layer, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
    monkeypatch.setattr(cache, "_affordable", lambda: max((room - held_pages() - cache._pool.count - 1) // 4, 0))
    owner, held = sequence(0, range(400)), 0
    with contextlib.suppress(OutOfPages):
        for held in range(0, 400, 4):
            cache.stage(Step.of([missing(cache, owner, upto=held + 4)]))
            cache.commit([Verdict()])
    # four stores, one of which exists twice while it is copied
    assert 5 * (cache._pool.count + 2) > room
    assert cache.length(0) == held == 4 * cache._pool.count
