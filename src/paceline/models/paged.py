"""Models over pages: keys and values of all sequences lie in one pool, and a layer attends for the whole flat step in two launches,
whatever its segments. Nothing in between waits for the device.

`OverPages` records small steps and replays them; `PagedModel` is a transformers model on this road, untouched but for its attention.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence as Many
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from paceline.cache.base import Branching
from paceline.cache.paged import PagedCache
from paceline.kernels.slot_moves import move_slots
from paceline.kernels.step_tables import SMALLEST, Extent, StepTables
from paceline.models.base import KV_CACHES, Scores
from paceline.models.flat import FlatModel, sent
from paceline.models.hub import HubModel
from paceline.models.paged_attention import Layers, PagedForward
from paceline.models.quiet import sentence
from paceline.models.recording import Outputs, Recording, Result, Run, shared_pool
from paceline.step import Step

PAGE = 64
"""Slots of a page, as many as the kernel's block of keys."""
_PAGES = 64
"""Of a pool at first, where it is not known how large they are."""
_RECORDED_ROWS, _RECORDINGS = 256, 64
"""Rows of the largest step that is recorded, and how many recordings of a cache are kept."""


@dataclass
class _Recordings:
    """Those of one cache. moves: how often its pages had moved when they were made."""

    moves: int
    held: dict[tuple[Extent, tuple[int, ...]], Recording] = field(default_factory=dict)
    """Extent and taps -> recording; the one used last stands last."""


class OverPages(FlatModel):
    """Small steps of which anything is wanted are recorded and replayed, if the model can be; those that read prompts are not.

    Keys and values are kept as `kv_cache` says when a cache is made.
    """

    smallest = SMALLEST
    """What a step is recorded for at least."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.returns_early = device.type == "cuda"
        self.branching = Branching.TREE
        self._recordable = True
        # several drafters may run one model, each over a cache of its own
        self._recordings = WeakKeyDictionary[PagedCache, _Recordings]()
        self._pool, self._outputs = shared_pool(device), Outputs()

    @property
    @abstractmethod
    def share(self) -> int | None:
        """Rows that share a tile of the attention kernel; None where layers differ in it, or none has run yet."""

    @abstractmethod
    def _over(self, cache: PagedCache, tables: Callable[[int], StepTables]) -> Any:
        """What a forward needs to know of a cache and of a step. tables: rows that share a tile -> those of the step."""

    @property
    def first_pages(self) -> int:
        """Pages of a new cache, which grows; what was recorded over it is lost whenever it does."""
        return _PAGES

    def new_cache(self) -> PagedCache:
        return PagedCache(self.first_pages, PAGE, KV_CACHES.get(self.kv_cache or ""), grows=True, mover=move_slots)

    def _forward(self, step: Step, cache: PagedCache) -> Any:
        blocks = cache.blocks_of(step)
        return self._over(cache, lambda share: StepTables.of(step, blocks, cache.page_size, share, self._device))

    @torch.inference_mode()
    def score(self, step: Step, cache: PagedCache, taps: Iterable[int] = ()) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        wanted, rows = tuple(taps), len(step.tokens)
        decoding = rows <= _RECORDED_ROWS and bool(step.wanted_rows)
        if not self._recordable or not decoding or self.share is None:
            return super().score(step, cache, wanted)
        replayed = self._replayed(step, cache, wanted)
        if replayed is None:
            return super().score(step, cache, wanted)
        logits, captured = replayed
        if step.wants_all:
            found = {layer: hidden[0, :rows].clone() for layer, hidden in captured.items()}
            return Scores(logits[:rows].to(torch.float32, copy=True), found)
        wants = sent(step.wants, self._device)
        return Scores(logits[wants].float(), {layer: hidden[0, wants] for layer, hidden in captured.items()})

    def _replayed(self, step: Step, cache: PagedCache, taps: tuple[int, ...]) -> Result | None:
        """What a recording says of a step; None where there can be none, and nothing is held by then of what was tried."""
        blocks = cache.blocks_of(step)
        try:
            return self._recording(step, cache, blocks, taps)(step, blocks)
        except RuntimeError as error:
            self._recordings.clear()
            if not isinstance(error, torch.OutOfMemoryError):
                # a model that asks the device what to do next, as most mixtures of experts do, cannot be recorded
                self._recordable = False
                getLogger("paceline").warning("steps are not recorded as CUDA graphs: %s", sentence(error))
            return None

    def _recording(self, step: Step, cache: PagedCache, blocks: Many[array[int]], taps: tuple[int, ...]) -> Recording:
        recordings = self._recordings.get(cache)
        if recordings is None or recordings.moves != cache.moves:
            recordings = self._recordings[cache] = _Recordings(cache.moves)
            if not any(others.held for others in self._recordings.values()):
                # one whose graphs are all gone is gone with them
                self._pool = shared_pool(self._device)
        share = self.share
        assert share is not None
        place = Extent.of(step, blocks, share).bucketed(self.smallest), taps
        recording = recordings.held.pop(place, None)
        if recording is None:
            if len(recordings.held) == _RECORDINGS:
                del recordings.held[next(iter(recordings.held))]
            run = self._run_over(cache, taps)
            recording = Recording(run, place[0], cache.page_size, share, self._device, self._outputs, self._pool)
        recordings.held[place] = recording
        return recording

    def _run_over(self, cache: PagedCache, taps: tuple[int, ...]) -> Run:
        """The forward over a cache, which is not kept alive by it."""
        kept = ref(cache)

        def run(tables: StepTables) -> Result:
            pages = kept()
            assert pages is not None
            # what pads a bucket has no position, and a model may look one up
            positions = tables.positions.clamp(min=0).long()
            return self.run(tables.token_ids.long()[None], positions[None], self._over(pages, lambda _: tables), taps)

        return run


class PagedModel(OverPages, HubModel):
    """model: a causal LM in eval mode, switched to the attention named `attention.NAME` by whoever loads it.

    Raises NotImplementedError from `score` where a layer's rule is neither causal nor a sliding window: the probe then takes the
    dense road.
    """

    def __init__(self, model: Any, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        HubModel.__init__(self, model, name, context_length, eos_token_ids)
        OverPages.__init__(self, model.device)
        self._layers = Layers(context_length)

    @property
    def share(self) -> int | None:
        shares = self._layers.shares
        return next(iter(shares)) if len(shares) == 1 else None

    def _over(self, cache: PagedCache, tables: Callable[[int], StepTables]) -> PagedForward:
        return PagedForward(cache, self._layers, tables)
