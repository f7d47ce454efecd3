"""Attention over pages: how a flat ragged step passes through an unmodified model into the kernel that reads pages.

The kernel computes for all rows at once what `attention.py` computes segment by segment with masks. It supports causal attention
and sliding windows, so a layer's rule must be one of these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from transformers.masking_utils import causal_mask_function

from paceline.cache.paged import PagedCache
from paceline.kernels.attention_tiling import Tiling
from paceline.kernels.step_tables import StepTables
from paceline.kernels.tree_attention import tree_attention
from paceline.kernels.work_items import Division
from paceline.models.attention import AttentionOptions, Rule


@dataclass
class Layers:
    """What the first forward pass finds out about a model's attention from its layers' rules.

    longest: positions of the longest text. windows: layer -> how many positions a row sees, 0 for all. divisions: how the layers
    divide their work.
    """

    longest: int
    windows: dict[int, int] = field(default_factory=dict)
    divisions: set[Division] = field(default_factory=set)


class PagedForward:
    """One forward pass in flight. tables: a layer's division of work -> the tables by which rows of the step find their keys."""

    def __init__(self, cache: PagedCache, layers: Layers, tables: Callable[[Division], StepTables]) -> None:
        self.attention_calls = 0
        tables = functools.cache(tables)
        self._cache, self._layers, self._tables = cache, layers, tables
        # an index is int64: cast once, not for the keys and the values of every layer
        self._destinations = functools.cache(lambda division: tables(division).destinations.long())

    def attended(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        """All rows of one layer. query: [H, T, D]; keys: [K, T, D]; values: [K, T, D']. Returns [T, H, D']."""
        if layer not in self._layers.windows:
            self._layers.windows[layer] = window_of(options.rule, self._layers.longest)
        heads, kv_heads = query.shape[0], keys.shape[0]
        # always the same for one layer, as it must be
        tiling = Tiling.of(heads, kv_heads, query.shape[2], query.element_size())
        division = tiling.division(heads, kv_heads)
        self._layers.divisions.add(division)
        tables = self._tables(division)
        # a row that sees a NaN token gets NaN from its key; other rows multiply its value by zero, which must be finite
        values = values.nan_to_num(nan=0.0)
        self._cache.write(layer, self._destinations(division), keys.transpose(0, 1), values.transpose(0, 1))
        pages = self._cache.layer(layer)
        rows = query.transpose(0, 1)
        return tree_attention(
            rows if rows.stride(2) == 1 else rows.contiguous(),
            pages.keys,
            pages.values,
            tables,
            scale=options.scale,
            tiling=tiling,
            window=self._layers.windows[layer],
            softcap=options.softcap,
            sinks=options.sinks,
            key_scales=pages.key_scales,
            value_scales=pages.value_scales,
        )


def window_of(rule: Rule | None, longest: int) -> int:
    """How many positions a row sees by a layer's rule, its own included; 0 if it sees all up to `longest`.

    Raises NotImplementedError if the rule is neither causal nor a sliding window.
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
    """The positions up to `position` that a row there may attend to; as a range if they are contiguous."""
    zero = torch.zeros((), dtype=torch.int64)
    allowed = rule(zero, zero, torch.tensor([[position]]), torch.arange(position + 1)[None]).expand(1, position + 1)
    found = allowed[0].nonzero()[:, 0].tolist()
    return range(found[0], found[-1] + 1) if found and found[-1] - found[0] + 1 == len(found) else found
