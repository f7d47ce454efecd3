"""Panels pass the tests of every cache while their slabs double, and never expose a number that was not written.

Source of the invariants: `test_cache`, whose sequences come, grow, are truncated, fork and go.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis.stateful import invariant

from cache.test_cache import Life, Panels, grow
from lives import both_lengths, live
from paceline.cache import slabs
from paceline.cache.panels import PanelCache, Shape
from paceline.step import Step, Verdict
from paceline.tree import DraftTree
from stepping import accept, missing, sequence


class PanelLife(Life):
    kind = Panels

    @invariant()
    def a_slab_holds_what_it_says(self) -> None:
        cache = self.store.cache
        assert isinstance(cache, PanelCache)
        for slab in cache._slabs.values():
            assert slab.length <= slab.capacity
            assert slab.capacity % cache.shape.panel == 0
            keys, values, _ = cache.shape.slab(slab.capacity)
            assert (slab.keys.shape, slab.values.shape) == (keys.shape, values.shape)
            assert not slab.values[:, :, 1, :, 2:].any(), "padding of values is read, and must stay zero"


@both_lengths(100, 40)
def test_any_order_of_operations_in_doubling_slabs_leaves_a_prefix_of_the_text(
    monkeypatch: pytest.MonkeyPatch, runs: int, steps: int
) -> None:
    """Slabs begin with one panel, so that nearly every step needs more room."""
    monkeypatch.setattr(slabs, "FIRST_CAPACITY", 4)
    live(PanelLife, runs, steps)


@pytest.mark.parametrize("path", [(1,), (2,), (2, 5), (1, 3), (4, 6, 7), ()])
def test_accepted_slots_move_together(path: tuple[int, ...]) -> None:
    """Destinations may be sources too, as in (2, 5); (4, 6, 7) moves to the slots of nodes 1 to 3, across a panel border."""
    store, owner = Panels(), sequence(0, range(6))
    grow(store, owner)
    owner.commit((7,), ())
    tree = DraftTree((7, 1, 2, 3, 4, 5, 6, 8), (-1, 0, 0, 1, 0, 2, 4, 6))
    assert tree.path(path[-1] if path else 0) == path
    step = Step.of([missing(store.cache, owner, tree)])
    store.cache.stage(step)
    store.write(step)
    verdict = accept(tree, path, 9)
    store.cache.commit([verdict])
    owner.commit(verdict.tokens, ())
    fresh = Panels()
    grow(fresh, sequence(0, owner.tokens[:-1]))
    assert store.contents(0) == fresh.contents(0)


def test_slots_never_written_are_zero() -> None:
    """A probability of zero times the contents must be zero, also in slots added when the slab grew."""
    cache, owner = PanelCache(Shape(1, 1, 5, 8)), sequence(0, range(300))
    cache.stage(Step.of([missing(cache, owner)]))
    slab = cache.slab(0)
    assert slab.capacity == 512
    assert not slab.keys.any()
    assert not slab.values.any()


def test_room_can_be_had_and_counted_outside_of_a_step() -> None:
    cache = PanelCache(Shape(1, 1, 4, 4))
    slab = cache.reserve(3, 200)
    assert (slab.capacity, cache.length(3)) == (256, 0)
    slab.keys[..., 0], slab.values[:, :, :, 0] = 1.0, 1.0
    cache.advance(3, 1)
    assert cache.reserve(3, 300) is slab
    assert (slab.capacity, cache.length(3)) == (512, 1)
    assert bool((slab.values[:, :, :, 0] == 1).all())
    before = cache.held_bytes
    cache.fork(3, 4)
    # a fork copies no more than the used panels
    assert cache.held_bytes == before + before // 4
    slab.keys[:, :, 0] = 5.0
    assert np.array_equal(cache.slab(4).keys[:, :, 0, :, 0], np.ones((1, 1, 4)))
    cache.stage(Step.of([missing(cache, sequence(4, range(3)))]))
    cache.commit([Verdict()])
    assert (cache.length(3), cache.length(4)) == (1, 3)
    cache.reserve(3, 4000)
    cache.shrink(3)
    assert (cache.slab(3).capacity, cache.length(3)) == (128, 1)
    assert bool((cache.slab(3).values[:, :, :, 0] == 1).all())
    small = cache.slab(4)
    for key in (4, 5):
        cache.shrink(key)
    assert cache.slab(4) is small
