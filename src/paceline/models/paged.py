"""Models over pages: keys and values of all sequences lie in one pool, and a layer attends for a whole flat step at once.

Nothing waits for the device during a step. `OverPages` records small steps and replays them; `PagedModel` is a transformers model
on this backend, unchanged except for its attention.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch

from paceline.cache.base import Branching
from paceline.cache.paged import PagedCache
from paceline.kernels.slot_moves import slot_mover
from paceline.kernels.step_tables import SMALLEST, Extent, StepTables
from paceline.kernels.work_items import Division
from paceline.models.base import KV_CACHES, Scores
from paceline.models.flat import FlatModel, sent
from paceline.models.hub import HubModel
from paceline.models.paged_attention import Layers, PagedForward
from paceline.models.quiet import sentence
from paceline.models.recording import Found, Outputs, Recording, Result, shared_pool
from paceline.shortage import memory_ended
from paceline.step import Step

PAGE = 64
"""Slots per page, as many as the kernel's block of keys."""
_PAGES = 64
"""Initial pages of a pool if the size of a page is unknown."""
RECORDED_ROWS, _RECORDINGS = 256, 64
"""Rows of the largest step that is recorded, and how many recordings are kept per cache."""

_RARE, _WIDER = 32, 2
"""Steps of one size that a larger recording serves before that size is recorded itself: recording costs more than so many steps
lose in the larger one. The larger one has at most `_WIDER` times as many rows and sequences."""
_REST, _LONGEST_REST = 32, 4096
"""Forward passes without an attempt to record after memory ran out while recording: at first, and at most."""
_FORGIVEN = 2
"""Failed recordings allowed for a model that was recorded before: the device, or another user of it, may disturb a recording."""
Made = TypeVar("Made")
"""A recording, whole or in parts."""
_Place = tuple[str, Extent, tuple[int, ...]]
"""Key of a recording: kind, extent, and further numbers that distinguish it."""


@dataclass
class _Recordings:
    """The recordings of one cache. moves: how often its pages had moved when they were made."""

    moves: int
    held: dict[_Place, Any] = field(default_factory=dict)
    """Key -> recording, least recently used first."""
    asked: Counter[_Place] = field(default_factory=Counter)
    """Key -> how often it was wanted while it was not recorded."""

    def serving(self, place: _Place, at_least: Callable[[Extent], Extent]) -> _Place:
        """The key of the recording to use for a step: its own, or the first few times that of a larger recording, if one exists.

        at_least: extent -> the step's smallest extent that is no smaller than the given one.
        """
        if place in self.held:
            return place
        self.asked[place] += 1
        if self.asked[place] > _RARE:
            return place
        what, extent, rest = place
        larger = [
            other
            for other in self.held
            if (other[0], other[2]) == (what, rest)
            and other[1].rows <= _WIDER * extent.rows
            and other[1].sequences <= _WIDER * extent.sequences
            and at_least(other[1]) == other[1]
        ]
        return min(larger, default=place)


class OverPages(FlatModel):
    """Small steps that want logits are recorded as graphs and replayed, if the model allows it; steps that only read prompts are
    not.

    A new cache stores keys and values in the format `kv_cache`.
    """

    smallest = SMALLEST
    """The smallest extent that is recorded."""
    never_waits = False
    """Whether its forward pass is known not to wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.returns_early = device.type == "cuda"
        self.branching = Branching.TREE
        self._recordable, self._has_recorded, self._forgiven = True, False, _FORGIVEN
        # how many more forward passes run without a recording, and how many will after the next failure
        self._resting, self._rest = 0, _REST
        # several drafters may run one model, each over a cache of its own
        self._recordings = WeakKeyDictionary[PagedCache, _Recordings]()
        self._pool, self._outputs = shared_pool(device), Outputs()

    @property
    @abstractmethod
    def division(self) -> Division | None:
        """How layers divide the work of attention; None if layers differ in it, or none has run yet."""

    @abstractmethod
    def _over(self, cache: PagedCache, tables: Callable[[Division], StepTables]) -> Any:
        """The forward pass's view of a cache and a step. tables: division of attention's work -> the step's tables."""

    @property
    def first_pages(self) -> int:
        """Pages of a new cache. It grows, but growing invalidates the graphs recorded over it."""
        return _PAGES

    def new_cache(self) -> PagedCache:
        return PagedCache(self.first_pages, PAGE, KV_CACHES.get(self.kv_cache or ""), grows=True, mover=slot_mover)

    def _forward(self, step: Step, cache: PagedCache) -> Any:
        return self._over(cache, self._tables_of(step, cache))

    def _tables_of(self, step: Step, cache: PagedCache) -> Callable[[Division], StepTables]:
        """Division of attention's work -> tables exactly as large as a staged step."""
        blocks = cache.blocks_of(step)
        return lambda division: StepTables.of(step, blocks, cache.page_size, division, self._device)

    @torch.inference_mode()
    def score(self, step: Step, cache: PagedCache, taps: Iterable[int] = ()) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        wanted, rows = tuple(taps), len(step.tokens)
        recorded = self._recordable and rows <= RECORDED_ROWS and self.division is not None and bool(step.wanted_rows)
        replayed = self._replayed(step, cache, wanted) if recorded else None
        if replayed is None:
            return super().score(step, cache, wanted)
        logits, captured = replayed
        if step.wants_all:
            found = {layer: hidden[0, :rows].clone() for layer, hidden in captured.items()}
            return Scores(logits[:rows].to(torch.float32, copy=True), found)
        wants = sent(step.wants, self._device)
        return Scores(logits[wants].float(), {layer: hidden[0, wants] for layer, hidden in captured.items()})

    def _replayed(self, step: Step, cache: PagedCache, taps: tuple[int, ...]) -> Result | None:
        """The result of replaying a recording for a step: all rows of its bucket, those of the step first. None if it cannot be
        recorded; the failed attempt's memory has been released by then."""
        blocks, division = cache.blocks_of(step), self.division
        assert division is not None

        def at_least(least: Extent) -> Extent:
            return Extent.of(step, blocks, cache.page_size, division, least)

        _, extent, _ = place = self._place(cache, ("step", at_least(self.smallest), taps), at_least)

        def made(pages: Callable[[], PagedCache]) -> Recording[StepTables, Result]:
            def run(tables: StepTables) -> Result:
                # padding rows have position -1, which a model may look up in a table
                positions = tables.positions.clamp(min=0).long()[None]
                forward = self._over(pages(), lambda _: tables)
                return self._outputs.filled(self.run(tables.token_ids.long()[None], positions, forward, taps))

            tables = StepTables(extent, cache.page_size, division, self._device)
            return Recording(tables, run, self._device, self._pool, self.never_waits)

        def replayed() -> Result:
            recording = self._recording(cache, place, made)
            recording.tables.load(step, blocks)
            return recording()

        return self._or_none(replayed)

    def _or_none(self, replayed: Callable[[], Found]) -> Found | None:
        """The result of a recording; None if it cannot be made, or if memory ran out recently: each failure drops all recordings,
        and each attempt computes the step twice."""
        if self._resting:
            self._resting -= 1
            return None
        try:
            found = replayed()
        except RuntimeError as error:
            self._recordings.clear()
            if memory_ended(error):
                self._resting, self._rest = self._rest, min(2 * self._rest, _LONGEST_REST)
            else:
                # a model whose control flow depends on the device's results, as most mixtures of experts, cannot be recorded; a
                # model that was recorded before is tried again
                self._forgiven -= 1
                self._recordable = self._has_recorded and self._forgiven >= 0
                what = "a step is" if self._recordable else "steps are"
                getLogger("paceline").warning("%s not recorded as CUDA graphs: %s", what, sentence(error))
            return None
        self._has_recorded = True
        # each recorded forward pass shortens the next pause by one
        self._rest = max(self._rest - 1, _REST)
        return found

    def _place(self, cache: PagedCache, place: _Place, at_least: Callable[[Extent], Extent]) -> _Place:
        """As `_Recordings.serving`, if padding rows do not change a row's bits; else the step's own key."""
        return self._recordings_of(cache).serving(place, at_least) if self.batch_invariant else place

    def _recordings_of(self, cache: PagedCache) -> _Recordings:
        """The recordings of a cache; emptied when its pages have moved."""
        recordings = self._recordings.get(cache)
        if recordings is None or recordings.moves != cache.moves:
            recordings = self._recordings[cache] = _Recordings(cache.moves)
            if not any(others.held for others in self._recordings.values()):
                # a graph pool is released with its last graph
                self._pool = shared_pool(self._device)
        return recordings

    def _recording(self, cache: PagedCache, place: _Place, made: Callable[[Callable[[], PagedCache]], Made]) -> Made:
        """The recording over a cache with the key `place`, made if needed. made: makes one, given a function that returns the
        cache, so that the recording does not keep the cache alive."""
        held = self._recordings_of(cache).held
        recording = held.pop(place, None)
        if recording is None:
            if len(held) == _RECORDINGS:
                del held[next(iter(held))]
            kept = ref(cache)

            def pages() -> PagedCache:
                found = kept()
                assert found is not None
                return found

            recording = made(pages)
        held[place] = recording
        return recording


class PagedModel(OverPages, HubModel):  # pyright: ignore[reportIncompatibleMethodOverride]
    """model: a causal LM in eval mode, already switched to the attention named `attention.NAME`.

    `score` raises NotImplementedError if a layer's mask is neither causal nor a sliding window: the self-check then takes the
    dense backend.
    """

    def __init__(self, model: Any, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        HubModel.__init__(self, model, name, context_length, eos_token_ids)
        OverPages.__init__(self, model.device)
        self._layers = Layers(context_length)

    @property
    def division(self) -> Division | None:
        divisions = self._layers.divisions
        return next(iter(divisions)) if len(divisions) == 1 else None

    def _over(self, cache: PagedCache, tables: Callable[[Division], StepTables]) -> PagedForward:
        return PagedForward(cache, self._layers, tables)
