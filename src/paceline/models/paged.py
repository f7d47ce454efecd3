"""PagedModel: a transformers model on a GPU, its attention over pages in our own kernels.

Of the dense road it differs in two things: keys and values of all sequences lie in one pool of pages, and a layer attends for the
whole flat step in two launches, whatever its segments. Nothing in between waits for the device.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence as Many
from logging import getLogger
from typing import Any

import torch

from paceline.cache.paged import PagedCache
from paceline.kernels.step_tables import Extent, StepTables
from paceline.models.base import Scores
from paceline.models.hub import HubModel
from paceline.models.paged_attention import Layers, PagedForward
from paceline.models.quiet import sentence
from paceline.models.recording import Recording, Result
from paceline.step import Step

_PAGE, _PAGES = 64, 64
"""Slots of a page, as many as the kernel's block of keys; pages of a pool at first, which grows."""
_RECORDED_ROWS, _RECORDINGS = 64, 64
"""Rows of the largest step that is recorded, and how many recordings are kept."""


class PagedModel(HubModel):
    """Steps of decoding are recorded and replayed, if the model can be; those that read prompts are not.

    Raises NotImplementedError from `score` where a layer's rule is neither causal nor a sliding window: the probe then takes the
    dense road.
    """

    def __init__(self, model: Any, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        super().__init__(model, name, context_length, eos_token_ids)
        self._layers = Layers(context_length)
        self._recordable = True
        self._recorded: tuple[PagedCache, int] | None = None
        """The cache that recordings are of, and how often its pages had moved by then."""
        self._recordings: dict[tuple[Extent, tuple[int, ...]], Recording] = {}

    def new_cache(self) -> PagedCache:
        return PagedCache(_PAGES, _PAGE, grows=True)

    def _forward(self, step: Step, cache: PagedCache) -> PagedForward:  # pyright: ignore[reportIncompatibleMethodOverride]
        blocks = cache.blocks_of(step)
        return PagedForward(cache, self._layers, lambda share: StepTables.of(step, blocks, cache.page_size, share, self._device))

    @torch.inference_mode()
    def score(self, step: Step, cache: PagedCache, taps: Iterable[int] = ()) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        wanted, rows = tuple(taps), len(step.tokens)
        decoding = rows <= _RECORDED_ROWS and step.wanted_rows == tuple(range(rows))
        if not self._recordable or not decoding or len(self._layers.shares) != 1:
            return super().score(step, cache, wanted)  # pyright: ignore[reportArgumentType]
        blocks = cache.blocks_of(step)
        try:
            logits, captured = self._recording(step, cache, blocks, wanted)(step, blocks)
        except RuntimeError as error:
            self._recordings.clear()
            if not isinstance(error, torch.OutOfMemoryError):
                # a model that asks the device what to do next, as most mixtures of experts do, cannot be recorded
                self._recordable = False
                getLogger("paceline").info("steps are not recorded as CUDA graphs: %s", sentence(error))
            return super().score(step, cache, wanted)  # pyright: ignore[reportArgumentType]
        found = {layer: hidden[0, :rows].clone() for layer, hidden in captured.items()}
        return Scores(logits[:rows].to(torch.float32, copy=True), found)

    def _recording(self, step: Step, cache: PagedCache, blocks: Many[array[int]], taps: tuple[int, ...]) -> Recording:
        if self._recorded is None or self._recorded[0] is not cache or self._recorded[1] != cache.moves:
            self._recordings.clear()
            self._recorded = cache, cache.moves
        (share,) = self._layers.shares
        place = Extent.of(step, blocks, share).bucketed(), taps
        # the one used last stands last
        recording = self._recordings.pop(place, None)
        if recording is None:
            if len(self._recordings) == _RECORDINGS:
                del self._recordings[next(iter(self._recordings))]

            def run(token_ids: torch.Tensor, positions: torch.Tensor, tables: StepTables) -> Result:
                return self.run(token_ids, positions, PagedForward(cache, self._layers, lambda _: tables), taps)

            recording = Recording(run, place[0], cache.page_size, share, self._device)
        self._recordings[place] = recording
        return recording
