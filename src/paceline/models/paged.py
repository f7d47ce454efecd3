"""PagedModel: a transformers model on a GPU, its attention over pages in our own kernels.

Of the dense road it differs in two things: keys and values of all sequences lie in one pool of pages, and a layer attends for the
whole flat step in two launches, whatever its segments. Nothing in between waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import causal_mask_function

from paceline.cache.paged import PagedCache
from paceline.kernels.step_tables import StepTables
from paceline.kernels.tree_attention import Tiling, tree_attention
from paceline.models.attention import Rule
from paceline.models.hub import HubModel
from paceline.step import Step

_PAGE, _PAGES = 64, 64
"""Slots of a page, as many as the kernel's block of keys; pages of a pool at first, which grows."""


class PagedModel(HubModel):
    """Raises NotImplementedError from `score` where a layer's rule is neither causal nor a sliding window: the probe then takes
    the dense road."""

    def __init__(self, model: Any, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        super().__init__(model, name, context_length, eos_token_ids)
        self._windows: dict[int, int] = {}

    def new_cache(self) -> PagedCache:
        return PagedCache(_PAGES, _PAGE, grows=True)

    def _forward(self, step: Step, cache: PagedCache) -> PagedForward:  # pyright: ignore[reportIncompatibleMethodOverride]
        return PagedForward(step, cache, self._windows, self.context_length)


class PagedForward:
    """One forward in flight: its tables are made once and read by every layer. windows: layer -> how many positions a row sees,
    0 for all; filled by the first forward of a model, since it needs the rule itself."""

    def __init__(self, step: Step, cache: PagedCache, windows: dict[int, int], longest: int) -> None:
        self.step, self.cache = step, cache
        self.attention_calls = 0
        self._windows, self._longest = windows, longest
        self._tables: dict[int, StepTables] = {}

    def attended(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rule: Rule | None,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """All rows of one layer. query: [H, T, D]; keys: [K, T, D]; values: [K, T, D']. Returns [T, H, D']."""
        if layer not in self._windows:
            self._windows[layer] = window_of(rule, self._longest)
        heads, kv_heads = query.shape[0], keys.shape[0]
        # of one model's layers the tiling is always the same, as it must be
        tiling = Tiling(rows=max(Tiling.rows, 1 << (heads // kv_heads - 1).bit_length()))
        tables = self._tables_for(tiling.rows_per_tile(heads, kv_heads), query.device)
        self.cache.write(layer, tables.destinations, keys.transpose(0, 1), values.transpose(0, 1))
        pages = self.cache.layer(layer)
        rows = query.transpose(0, 1)
        return tree_attention(
            rows if rows.stride(2) == 1 else rows.contiguous(),
            pages.keys,
            pages.values,
            tables,
            scale=scale,
            tiling=tiling,
            window=self._windows[layer],
            softcap=softcap,
            sinks=sinks,
            key_scales=pages.key_scales,
            value_scales=pages.value_scales,
        )

    def _tables_for(self, rows_per_tile: int, device: torch.device) -> StepTables:
        if rows_per_tile not in self._tables:
            blocks = [self.cache.blocks(segment.sequence.key) for segment in self.step.segments]
            self._tables[rows_per_tile] = StepTables.of(self.step, blocks, self.cache.page_size, rows_per_tile, device)
        return self._tables[rows_per_tile]


def window_of(rule: Rule | None, longest: int) -> int:
    """How many positions a row sees by a layer's rule, its own included; 0 where it sees all up to `longest`.

    Raises NotImplementedError where what it sees is no such window.
    """
    if rule is None or rule is causal_mask_function:
        return 0
    window = len(_seen(rule, longest - 1))
    around = {near + shift for near in (0, window, 2 * window, longest // 2, longest // 3, longest) for shift in (-2, -1, 0, 1)}
    for position in sorted(at for at in around if 0 <= at < longest):
        if _seen(rule, position) != range(max(position - window + 1, 0), position + 1):
            raise NotImplementedError("a layer's attention is neither causal nor a sliding window")
    return window if window < longest else 0


def _seen(rule: Rule, position: int) -> range | list[int]:
    """The positions up to its own that a row there may look at; a range where nothing lies between them."""
    zero = torch.zeros((), dtype=torch.int64)
    allowed = rule(zero, zero, torch.tensor([[position]]), torch.arange(position + 1)[None]).expand(1, position + 1)
    found = allowed[0].nonzero()[:, 0].tolist()
    return range(found[0], found[-1] + 1) if found and found[-1] - found[0] + 1 == len(found) else found
