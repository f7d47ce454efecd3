"""The attention seam: how a flat ragged step passes through unmodified transformers models.

A model whose attention goes through transformers' `AttentionInterface` calls `attend` once per layer with the new rows of
all sequences; each segment's keys and values go into the engine's own cache and its rows attend to that cache alone. A mask
function registered under the same name passes every layer its own rule (causal, sliding, chunked), which is evaluated on
positions and ANDed with the ancestor relation of the tree. The step is passed in a context variable because some families drop
keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function
from transformers.modeling_utils import AttentionInterface

from paceline.cache.dense import DenseCache
from paceline.step import Segment, Step

NAME = "paceline"
_SCORES = 1 << 24
"""Most scores in memory at once in explicit attention: those of a prompt chunk after a long text would take gigabytes."""
_REPEATED = 1 << 22
"""Largest mask, in numbers, that is repeated for all query heads of a group: with 48 heads, the mask of a prompt chunk after a
long text would take a gigabyte."""
Rule = Callable[[Any, Any, Any, Any], torch.Tensor]


@dataclass(frozen=True)
class AttentionOptions:
    """How a layer attends. rule: which positions a row may attend to; None for all up to its own. softcap: scores become
    softcap * tanh(score / softcap). sinks: [H], a logit per head that joins the softmax and has no value."""

    rule: Rule | None
    scale: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class InFlight(Protocol):
    """One forward pass in flight, as `attend` uses it."""

    attention_calls: int

    def attended(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        """Store keys and values of one layer's new rows, and attend for all of them.

        query: [H, T, D]; keys: [K, T, D]; values: [K, T, D']. Returns [T, H, D'].
        """
        ...


class Forward:
    """One forward pass over dense slabs: the step, its cache, and the masks made so far, one per layer rule and segment."""

    def __init__(self, step: Step, cache: DenseCache) -> None:
        self.step, self.cache = step, cache
        self.attention_calls = 0
        self._masks: dict[tuple[Rule | None, int, int], torch.Tensor | None] = {}

    def attended(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        segments = self.step.segments
        if len(segments) == 1:
            return _attended(self, layer, segments[0], query, keys, values, options)
        parts = []
        for segment in segments:
            rows = slice(segment.low, segment.high)
            fresh = (query[:, rows], keys[:, rows], values[:, rows])
            parts.append(_attended(self, layer, segment, *fresh, options))
        return torch.cat(parts)

    def mask(self, rule: Rule | None, segment: Segment, query: torch.Tensor, heads: int) -> torch.Tensor | None:
        """In the query's dtype [heads*n, end]: 0 where a row may attend, -inf elsewhere; None if no mask is needed.

        heads: number of query heads that are folded into rows, head by head.
        """
        if segment.rows == 1 and (rule is None or rule is causal_mask_function):
            return None
        place = (rule, segment.low, heads)
        if place not in self._masks:
            seen = _visible(rule, segment, query.device).repeat(heads, 1)
            self._masks[place] = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill_(~seen, -torch.inf)
        return self._masks[place]


def _visible(rule: Rule | None, segment: Segment, device: torch.device) -> torch.Tensor:
    """bool [rows, end]: the layer's own rule on positions, ANDed within the segment with the ancestors."""
    if rule is None or rule is causal_mask_function:
        seen = torch.ones(segment.rows, segment.end, dtype=torch.bool, device=device)
    else:
        rows = segment.positions.to(device)[:, None]
        keys = torch.cat([torch.arange(segment.start), segment.positions]).to(device)[None, :]
        zero = torch.zeros((), dtype=torch.int64, device=device)
        seen = rule(zero, zero, rows, keys).expand(segment.rows, segment.end).clone()
    seen[:, segment.start :] &= segment.ancestors.to(device)
    return seen


FORWARD: ContextVar[InFlight] = ContextVar("paceline_forward")
"""The forward pass in flight."""


class PassThrough(Cache):
    """Passes new keys and values through unchanged: `attend` stores them."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any):
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return (query_length if isinstance(query_length, int) else query_length.shape[0]), 0


def keep_rule(*_: Any, mask_function: Rule | None = None, **__: Any) -> Rule | None:
    """The mask function: the model passes its result to its layers of one type, so it returns the rule itself."""
    return mask_function


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Rule | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function. query: [1, H, T, D]; key: [1, K, T, D]; value: [1, K, T, D']. attention_mask: what `keep_rule`
    returned. Returns [1, T, H, D'], contiguous, as transformers' own functions do: some models view it."""
    forward = FORWARD.get()
    forward.attention_calls += 1
    layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType]
    scale = float(query.shape[3] ** -0.5 if scaling is None else scaling)
    options = AttentionOptions(attention_mask, scale, softcap, s_aux)
    return forward.attended(layer, query[0], key[0], value[0], options)[None].contiguous(), None


def _attended(
    forward: Forward,
    layer: int,
    segment: Segment,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """Store one segment's keys and values, and attend to its whole sequence. query: [H, n, D]; returns [n, H, D']."""
    keys, values = forward.cache.store(layer, segment, key, value)
    # the query heads of a group share their keys: folded into rows, they need no repeated keys
    folded = query.reshape(keys.shape[0], -1, query.shape[2])
    rows, heads = segment.rows, query.shape[0] // keys.shape[0]
    if rows == 1 or heads * rows * segment.end <= _REPEATED:
        mixed = _mixed_at_once(folded, keys, values, forward.mask(options.rule, segment, query, heads), options)
    else:
        mask = forward.mask(options.rule, segment, query, 1)
        sinks = [None] * heads if options.sinks is None else options.sinks.view(-1, heads).unbind(1)
        parts = [
            _mixed_at_once(folded[:, head * rows : (head + 1) * rows], keys, values, mask, replace(options, sinks=sinks[head]))
            for head in range(heads)
        ]
        mixed = torch.cat(parts, -2)
    return mixed.reshape(query.shape[0], rows, -1).transpose(0, 1)


def _mixed_at_once(
    folded: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, options: AttentionOptions
) -> torch.Tensor:
    """folded: [K, g*n, D], some query heads of each group; mask: [g*n, end], additive. Returns [K, g*n, D']."""
    if options.softcap is None and options.sinks is None:
        return scaled_dot_product_attention(folded[None], keys[None], values[None], attn_mask=mask, scale=options.scale)[0]
    return _explicit(folded, keys, values, mask, options)


def _explicit(
    folded: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, options: AttentionOptions
) -> torch.Tensor:
    """Attention written out, for score capping (Gemma 2) and sink logits that join the softmax (GPT-OSS).

    folded: [K, G*n, D]; mask: [G*n, end], additive.
    """
    at_once = max(_SCORES // (keys.shape[0] * keys.shape[1]), 1)
    column = _column(folded, options)
    parts = []
    for low in range(0, folded.shape[1], at_once):
        rows = slice(low, low + at_once)
        part_mask, part_column = None if mask is None else mask[rows], None if column is None else column[:, rows]
        parts.append(_mixed(folded[:, rows], keys, values, part_mask, part_column, options))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _column(folded: torch.Tensor, options: AttentionOptions) -> torch.Tensor | None:
    """[K, G*n, 1]: the sink of each row, or None."""
    if options.sinks is None:
        return None
    rows = folded.shape[1] * folded.shape[0] // options.sinks.shape[0]
    return options.sinks.to(folded.dtype).repeat_interleave(rows).view(folded.shape[0], folded.shape[1], 1)


def _mixed(
    folded: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    column: torch.Tensor | None,
    options: AttentionOptions,
) -> torch.Tensor:
    """As `_explicit`, for some rows, whose sinks are `column`."""
    scores = folded @ keys.mT * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if mask is not None:
        scores = scores + mask
    if column is not None:
        scores = torch.cat([scores, column], -1)
    # half precision loses too much in a softmax over a long context
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    return (weights if column is None else weights[..., :-1]) @ values


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, keep_rule)
