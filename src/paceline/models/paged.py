"""Models over pages: keys and values of all sequences lie in one pool, and a layer attends for a whole flat step at once.

Nothing in between waits for the device. `OverPages` records small steps and replays them; `PagedModel` is a transformers model on
this backend, untouched but for its attention.
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
from paceline.models.recording import Found, Outputs, Recording, RecordingInParts, Result, Tables, shared_pool
from paceline.shortage import memory_ended
from paceline.step import Step

PAGE = 64
"""Slots of a page, as many as the kernel's block of keys."""
_PAGES = 64
"""Of a pool at first, where it is not known how large they are."""
RECORDED_ROWS, _RECORDINGS = 256, 64
"""Rows of the largest step that is recorded, and how many recordings of a cache are kept."""

_RARE, _WIDER = 32, 2
"""Steps of one size that a larger recording serves, before that size has one of its own: to record it takes longer than so many
of them take longer. Of at most so many times as many rows and sequences."""
_REST, _LONGEST_REST = 32, 4096
"""Forwards that are not recorded, nor tried to be, after there was no memory for a recording: at first, and at most."""
_FORGIVEN = 2
"""Recordings that may fail of a model that others were made of: a device, or who else uses it, may disturb one."""
Made = TypeVar("Made")
"""A recording, whole or in parts."""
_Place = tuple[str, Extent, tuple[int, ...]]
"""What is recorded, of what extent, and what else tells it from others."""


@dataclass
class _Recordings:
    """Those of one cache. moves: how often its pages had moved when they were made."""

    moves: int
    held: dict[_Place, Any] = field(default_factory=dict)
    """What is recorded, and of what extent -> recording; the one used last stands last."""
    asked: Counter[_Place] = field(default_factory=Counter)
    """How often what is not recorded was asked for."""

    def serving(self, place: _Place, at_least: Callable[[Extent], Extent]) -> _Place:
        """What is to serve a step: its own place, or for the first few times that of a larger extent, where one is recorded.

        at_least: the smallest extent of the step whose tables are no smaller than given.
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
    """Small steps of which anything is wanted are recorded and replayed, if the model can be; those that read prompts are not.

    Keys and values are kept as `kv_cache` says when a cache is made.
    """

    smallest = SMALLEST
    """What a step is recorded for at least."""
    never_waits = False
    """Whether its forward is known not to wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.returns_early = device.type == "cuda"
        self.branching = Branching.TREE
        self._recordable, self._has_recorded, self._forgiven = True, False, _FORGIVEN
        # how many forwards are still to rest, and how many will after the next failure
        self._resting, self._rest = 0, _REST
        # several drafters may run one model, each over a cache of its own
        self._recordings = WeakKeyDictionary[PagedCache, _Recordings]()
        self._pool, self._outputs = shared_pool(device), Outputs()

    @property
    @abstractmethod
    def division(self) -> Division | None:
        """How layers share out the work of attention; None where they differ in it, or none has run yet."""

    @abstractmethod
    def _over(self, cache: PagedCache, tables: Callable[[Division], StepTables]) -> Any:
        """What a forward needs to know of a cache and of a step. tables: how work is shared out -> those of the step."""

    @property
    def first_pages(self) -> int:
        """Pages of a new cache, which grows; what was recorded over it is lost whenever it does."""
        return _PAGES

    def new_cache(self) -> PagedCache:
        return PagedCache(self.first_pages, PAGE, KV_CACHES.get(self.kv_cache or ""), grows=True, mover=slot_mover)

    def _forward(self, step: Step, cache: PagedCache) -> Any:
        return self._over(cache, self._tables_of(step, cache))

    def _tables_of(self, step: Step, cache: PagedCache) -> Callable[[Division], StepTables]:
        """How work is shared out -> tables of the very size of a staged step."""
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
        """What a recording says of a step: all rows of its bucket, those of the step first. None where there can be none, and
        nothing is held by then of what was tried."""
        blocks, division = cache.blocks_of(step), self.division
        assert division is not None

        def at_least(least: Extent) -> Extent:
            return Extent.of(step, blocks, cache.page_size, division, least)

        _, extent, _ = place = self._place(cache, ("step", at_least(self.smallest), taps), at_least)

        def made(pages: Callable[[], PagedCache]) -> Recording[StepTables, Result]:
            def run(tables: StepTables) -> Result:
                # what pads a bucket has no position, and a model may look one up
                positions = tables.positions.clamp(min=0).long()[None]
                forward = self._over(pages(), lambda _: tables)
                return self._outputs.filled(self.run(tables.token_ids.long()[None], positions, forward, taps))

            return self._recorded(StepTables(extent, cache.page_size, division, self._device), run)

        def replayed() -> Result:
            recording = self._recording(cache, place, made)
            recording.tables.load(step, blocks)
            return recording()

        return self._or_none(replayed)

    def _or_none(self, replayed: Callable[[], Found]) -> Found | None:
        """What a recording says; None where it cannot be made, or there was no memory for one of late: all that were there go
        with each failure, and to try is to compute twice."""
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
                # a model that asks the device what to do next, as most mixtures of experts do, cannot be recorded; one that could
                # be is tried again
                self._forgiven -= 1
                self._recordable = self._has_recorded and self._forgiven >= 0
                what = "a step is" if self._recordable else "steps are"
                getLogger("paceline").warning("%s not recorded as CUDA graphs: %s", what, sentence(error))
            return None
        self._has_recorded = True
        # a forward that was recorded makes up for one that rested
        self._rest = max(self._rest - 1, _REST)
        return found

    def _recorded(self, tables: Tables, run: Callable[[Tables], Found]) -> Recording[Tables, Found]:
        return Recording(tables, run, self._device, self._pool, self.never_waits)

    def _recorded_in_parts(self, tables: Tables, run: Callable[[Tables, int], Found]) -> RecordingInParts[Tables, Found]:
        return RecordingInParts(tables, run, self._device, self._pool, self.never_waits)

    def _place(self, cache: PagedCache, place: _Place, at_least: Callable[[Extent], Extent]) -> _Place:
        """As `_Recordings.serving` has it, where other rows, though nothing lies in them, change no bits."""
        return self._recordings_of(cache).serving(place, at_least) if self.batch_invariant else place

    def _recordings_of(self, cache: PagedCache) -> _Recordings:
        """Those of a cache, none once its pages have moved."""
        recordings = self._recordings.get(cache)
        if recordings is None or recordings.moves != cache.moves:
            recordings = self._recordings[cache] = _Recordings(cache.moves)
            if not any(others.held for others in self._recordings.values()):
                # one whose graphs are all gone is gone with them
                self._pool = shared_pool(self._device)
        return recordings

    def _recording(self, cache: PagedCache, place: _Place, made: Callable[[Callable[[], PagedCache]], Made]) -> Made:
        """The recording over a cache of what `place` names. made: makes one, of the cache, which is not kept alive by it."""
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
    """model: a causal LM in eval mode, switched to the attention named `attention.NAME` by whoever loads it.

    Raises NotImplementedError from `score` where a layer's rule is neither causal nor a sliding window: the self-check then takes
    the dense backend.
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
