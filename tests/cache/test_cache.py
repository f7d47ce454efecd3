"""However it was staged, committed, truncated, forked or released, a cache holds what a fresh prefill would write.

Tests write made-up contents: for each token a hash of the text up to and including it, so that a misplaced slot, a stale one, or
one that two sequences share shows at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lives import both_lengths, live
from paceline.cache.base import Branching, KVCache
from paceline.cache.dense import DenseCache
from paceline.cache.panels import PanelCache, Shape
from paceline.cache.replay import ReplayCache
from paceline.cache.stateful import StatefulCache
from paceline.sequence import Sequence
from paceline.step import Segment, Step, Verdict
from paceline.tree import DraftTree
from stepping import accept, missing, sequence

TOKENS = st.integers(0, 5)
KEYS = st.integers(0, 3)


def mark(text: tuple[int, ...]) -> int:
    """A hash small enough to be exact in float32."""
    return hash(text) % 10**7


def marks_of(segment: Segment) -> list[int]:
    """The mark a forward writes for each row of a segment."""
    tokens, end = segment.sequence.tokens, segment.start + segment.chain
    marks = [mark(tuple(tokens[: slot + 1])) for slot in range(segment.start, end)]
    tree = segment.tree
    if tree is not None:
        marks += [mark((*tokens[:end], *(tree.tokens[n] for n in tree.path(node)))) for node in range(1, len(tree))]
    return marks


class Store(ABC):
    """One kind of cache, with the writes of a forward and the reads of a test."""

    cache: KVCache

    @abstractmethod
    def write(self, step: Step, part: float = 1.0) -> None:
        """Write the rows of a staged step; with `part` < 1 the forward fails halfway."""

    @abstractmethod
    def contents(self, key: int) -> list[list[int]]:
        """The marks held for a sequence, once per tensor."""

    def counted_bytes(self) -> int:
        """The bytes the cache should report, summed over its tensors."""
        return self.cache.held_bytes


class Dense(Store):
    def __init__(self) -> None:
        self.cache: DenseCache = DenseCache()

    @torch.inference_mode()
    def write(self, step: Step, part: float = 1.0) -> None:
        layers = range(2 if part == 1.0 else 1)
        for segment in step.segments:
            rows = torch.tensor(marks_of(segment))
            for layer in layers:
                keys, values = rows.view(1, -1, 1).repeat(2, 1, 3), rows.view(1, -1, 1).repeat(2, 1, 1) + layer
                seen = self.cache.store(layer, segment, keys, values)
                assert seen[0].shape == (2, segment.end, 3)
                assert seen[1].shape == (2, segment.end, 1)

    def contents(self, key: int) -> list[list[int]]:
        slab, length = self.cache._slabs.get(key), self.cache.length(key)
        if slab is None:
            return [[]]
        found = []
        for layer, (keys, values) in slab.layers.items():
            found += [keys[head, :length, column].tolist() for head in range(2) for column in range(3)]
            found += [(values[head, :length, 0] - layer).tolist() for head in range(2)]
        return found

    def counted_bytes(self) -> int:
        return sum(store.nbytes for slab in self.cache._slabs.values() for pair in slab.layers.values() for store in pair)


class Panels(Store):
    """Panels of four slots, so that short texts span several panels."""

    def __init__(self) -> None:
        self.cache: PanelCache = PanelCache(Shape(layers=2, heads=2, size=6, panel=4))

    def write(self, step: Step, part: float = 1.0) -> None:
        for segment in step.segments:
            slab = self.cache.slab(segment.sequence.key)
            slots, rows = np.arange(segment.start, segment.end), np.array(marks_of(segment))[:, None]
            for layer, head in product(range(2 if part == 1.0 else 1), range(2)):
                numbers = rows + np.arange(6) + 10 * head + 20 * layer
                slab.keys[layer, head, slots // 4, :, slots % 4] = numbers
                slab.values[layer, head][:, slots] = np.pad(numbers, ((0, 0), (0, 2))).reshape(-1, 2, 4).swapaxes(0, 1)

    def contents(self, key: int) -> list[list[int]]:
        slab, length = self.cache._slabs.get(key), self.cache.length(key)
        if slab is None:
            return [[]]
        found = []
        for layer, head in product(range(2), range(2)):
            keys = slab.keys[layer, head].swapaxes(0, 1).reshape(6, -1)
            values = slab.values[layer, head].swapaxes(1, 2).reshape(8, -1)[:6]
            excess = np.arange(6)[:, None] + 10 * head + 20 * layer
            found += [*(keys[:, :length] - excess).astype(int).tolist(), *(values[:, :length] - excess).astype(int).tolist()]
        return found

    def counted_bytes(self) -> int:
        return sum(slab.keys.nbytes + slab.values.nbytes for slab in self.cache._slabs.values())


def keep(state: list[int], length: int, slots: Any) -> None:
    """Opaque states are lists here, which a forward extends in place."""
    state[:] = state[:length] + [state[slot] for slot in slots]


def nbytes(state: list[int]) -> int:
    return 8 * len(state)


class Whole(Store):
    branching = Branching.TREE

    def __init__(self) -> None:
        self.cache: StatefulCache[list[int]] = StatefulCache(list, list, keep, nbytes, self.branching)

    def write(self, step: Step, part: float = 1.0) -> None:
        for segment in step.segments:
            marks = marks_of(segment)
            self.cache.state(segment.sequence.key).extend(marks[: int(len(marks) * part)])

    def contents(self, key: int) -> list[list[int]]:
        return [self.cache._states.get(key, [])[: self.cache.length(key)]]


class WholeChains(Whole):
    branching = Branching.CHAIN


class Snapshots(Store):
    def __init__(self) -> None:
        self.cache: ReplayCache[list[int]] = ReplayCache(list, lambda *states: sum(map(nbytes, states)))

    def write(self, step: Step, part: float = 1.0) -> None:
        for segment in step.segments:
            key, marks = segment.sequence.key, marks_of(segment)
            state = self.cache.working(key) or []
            certain = 0 if segment.chain == 1 and segment.nodes > 1 else segment.chain
            state.extend(marks[:certain])
            if certain:
                self.cache.reach(key, segment.start + certain, state)
                state = list(state)
            if part == 1.0 and certain < len(marks):
                state.extend(marks[certain:])
                self.cache.reach(key, segment.end, state)

    def contents(self, key: int) -> list[list[int]]:
        snapshots = self.cache._snapshots.get(key, [])
        for length, state in snapshots:
            assert len(state) == length
            assert state == snapshots[-1][1][:length]
        return [snapshots[-1][1] if snapshots else []]


STORES: dict[str, type[Store]] = {"dense": Dense, "panels": Panels, "trees": Whole, "chains": WholeChains, "replay": Snapshots}


def grow(store: Store, owner: Sequence) -> None:
    """One step that feeds all missing tokens, and its commit."""
    step = Step.of([missing(store.cache, owner)])
    store.cache.stage(step)
    store.write(step)
    store.cache.commit([Verdict()])


class Life(RuleBasedStateMachine):
    """Sequences come, grow, are truncated, fork and go; the expected contents follow from a plain list of tokens each."""

    kind: type[Store]

    @initialize()
    def open(self) -> None:
        self.store = self.kind()
        self.live: dict[int, Sequence] = {}

    @precondition(lambda self: len(self.live) < 4)
    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=9))
    def arrive(self, prompt: list[int]) -> None:
        key = min(set(range(4)) - set(self.live))
        self.live[key] = sequence(key, prompt)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), fate=st.sampled_from(["commit", "commit", "commit", "abandon", "break"]))
    def step(self, data: st.DataObject, fate: str) -> None:
        cache = self.store.cache
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.live)), min_size=1, unique=True))
        feeds, verdicts = [], []
        for key in chosen:
            owner = self.live[key]
            lacking = len(owner.tokens) - cache.length(key)
            if lacking == 0:
                owner.commit((data.draw(TOKENS),), ())
                lacking = 1
            fed = data.draw(st.integers(1, lacking))
            tree = self.draft(data, owner.root) if fed == lacking else None
            feeds.append(missing(cache, owner, tree, upto=len(owner.tokens) - lacking + fed))
            path = tree.path(data.draw(st.integers(0, len(tree) - 1))) if tree else ()
            verdicts.append(accept(tree, path, data.draw(TOKENS)) if tree else Verdict())
        step = Step.of(feeds)
        cache.stage(step)
        if fate == "abandon":
            return
        self.store.write(step, 0.5 if fate == "break" else 1.0)
        if fate == "break":
            return
        cache.commit(verdicts)
        for key, verdict in zip(chosen, verdicts, strict=True):
            self.live[key].commit(verdict.tokens, ())

    def draft(self, data: st.DataObject, root: int) -> DraftTree:
        paths = data.draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=3))
        tree = DraftTree.of_paths(root, paths, "test", 6)
        return tree if self.store.cache.branching is Branching.TREE else tree.first_chain()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=TOKENS)
    def truncate(self, data: st.DataObject, token: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        owner, cache = self.live[key], self.store.cache
        length = data.draw(st.integers(0, len(owner.tokens) - 1))
        held = cache.length(key)
        cache.truncate(key, length)
        left = cache.length(key)
        assert left <= min(length, held)
        assert cache.branching is Branching.REPLAY or left == min(length, held)
        self.live[key] = sequence(key, [*owner.tokens[:length], token])

    @precondition(lambda self: 0 < len(self.live) < 4)
    @rule(data=st.data(), token=TOKENS)
    def fork(self, data: st.DataObject, token: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        new_key, cache, tokens = min(set(range(4)) - set(self.live)), self.store.cache, self.live[key].tokens
        held = cache.length(key)
        length = data.draw(st.none() | st.integers(0, len(tokens) - 1))
        cache.fork(key, new_key, length)
        assert cache.length(key) == held
        self.live[new_key] = sequence(new_key, [*tokens[:length], token])
        left, wanted = cache.length(new_key), held if length is None else min(length, held)
        assert left <= wanted
        assert left == wanted or (cache.branching is Branching.REPLAY and length is not None)

    @precondition(lambda self: 0 < len(self.live) < 4)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        new_key, cache = min(set(range(4)) - set(self.live)), self.store.cache
        held = cache.length(key)
        cache.move(key, new_key)
        self.live[new_key] = sequence(new_key, self.live.pop(key).tokens)
        assert (cache.length(key), cache.length(new_key)) == (0, held)

    @rule(key=KEYS)
    def release(self, key: int) -> None:
        self.store.cache.release(key)
        self.live.pop(key, None)
        assert self.store.cache.length(key) == 0
        if not self.live:
            assert self.store.cache.held_bytes == 0

    @invariant()
    def holds_what_a_prefill_would_write(self) -> None:
        for key, owner in self.live.items():
            length = self.store.cache.length(key)
            assert length <= len(owner.tokens)
            fresh = [mark(tuple(owner.tokens[: slot + 1])) for slot in range(length)]
            assert all(held == fresh for held in self.store.contents(key))
        assert self.store.cache.held_bytes == self.store.counted_bytes()


@both_lengths(150, 40)
@pytest.mark.parametrize("name", STORES)
def test_any_life_leaves_a_prefix_of_the_text(name: str, runs: int, steps: int) -> None:
    life = type("Life", (Life,), {"kind": STORES[name]})
    live(life, runs, steps)


@pytest.mark.parametrize("name", STORES)
def test_steps_begin_where_the_cache_ends(name: str) -> None:
    store, owner = STORES[name](), sequence(0, [1, 2, 3])
    ahead = Step.of([missing(store.cache, owner)])
    store.cache.stage(ahead)
    store.write(ahead)
    store.cache.commit([Verdict()])
    with pytest.raises(ValueError, match="cache holds 3"):
        store.cache.stage(ahead)


@pytest.mark.parametrize("name", STORES)
def test_nothing_is_committed_twice(name: str) -> None:
    store, owner = STORES[name](), sequence(0, [1, 2, 3])
    grow(store, owner)
    with pytest.raises(ValueError, match="nothing is staged"):
        store.cache.commit([Verdict()])


@pytest.mark.parametrize("name", STORES)
def test_forks_diverge_without_touching_each_other(name: str) -> None:
    store, owner = STORES[name](), sequence(0, [1, 2, 3])
    grow(store, owner)
    store.cache.fork(0, 1)
    owner.commit((4, 5, 6), ())
    other = sequence(1, [1, 2, 3, 7, 8])
    grow(store, owner)
    grow(store, other)
    for one in (owner, other):
        fresh = [mark(tuple(one.tokens[: slot + 1])) for slot in range(len(one.tokens))]
        assert all(held == fresh for held in store.contents(one.key))


@pytest.mark.parametrize("name", STORES)
def test_a_pretended_context_has_its_length_and_a_forward_goes_on_from_it(name: str) -> None:
    store, owner = STORES[name](), sequence(0, range(1, 8))
    grow(store, sequence(0, [1, 2, 3]))
    pretended = store.cache.pretend(owner, 6)
    assert pretended == (name in {"dense", "panels"})
    assert store.cache.length(0) == (6 if pretended else 3)
    assert [held[:3] for held in store.contents(0)] == [[mark((1, 2, 3)[: slot + 1]) for slot in range(3)]] * len(
        store.contents(0)
    )
    # a forward goes on from there
    grow(store, owner)
    assert store.cache.length(0) == 7


def test_the_snapshot_of_a_step_never_committed_is_dropped() -> None:
    store, owner = Snapshots(), sequence(0, [1, 2, 3])
    broken = Step.of([missing(store.cache, owner)])
    store.cache.stage(broken)
    store.write(broken)
    grow(store, sequence(0, [1, 2, 4]))
    assert len(store.cache._snapshots[0]) == 1


@pytest.mark.parametrize("name", ["dense", "panels"])
def test_slabs_outgrow_their_first_capacity(name: str) -> None:
    store, owner = STORES[name](), sequence(0, [token % 6 for token in range(100)])
    for _ in range(4):
        grow(store, owner)
        owner.commit(tuple(owner.tokens[:100]), ())
    fresh = [mark(tuple(owner.tokens[: slot + 1])) for slot in range(400)]
    assert all(held == fresh for held in store.contents(0))
    assert store.cache.held_bytes == store.counted_bytes()


def test_going_back_over_snapshots_replays_little() -> None:
    """Recent snapshots are dense and older ones sparse: going back n tokens replays at most a few times n."""
    store, owner = Snapshots(), sequence(0, [0])
    for token in range(200):
        grow(store, owner)
        owner.commit((token % 6,), ())
    assert len(store.cache._snapshots[0]) <= 6
    for back in (1, 3, 10, 30):
        store.cache.fork(0, 1)
        store.cache.truncate(1, 200 - back)
        assert 200 - store.cache.length(1) <= 6 * back
