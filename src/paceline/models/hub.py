"""HubModel: any transformers causal language model whose attention goes through `AttentionInterface`.

The model is not modified. One forward pass runs a flat ragged step: prefill chunks, plain decodes and draft trees of many
sequences side by side, with keys and values in the engine's own slabs (`attention.py` connects the two).
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import torch

from paceline.cache.base import Branching, KVCache
from paceline.cache.dense import DenseCache
from paceline.kernels.prepacked import held_bytes, outputs_of
from paceline.models.attention import FORWARD, Forward, InFlight, PassThrough
from paceline.models.base import weights_name
from paceline.models.flat import FlatModel
from paceline.models.taps import decoder_layers, tapped
from paceline.step import Step


class HubModel(FlatModel):
    """model: a causal LM in eval mode, already switched to the attention named `attention.NAME`."""

    def __init__(self, model: Any, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self.model, self.name = model, name
        self.vocab_size, self.layers = outputs_of(model.get_output_embeddings()), len(decoder_layers(model))
        self.weights = weights_name(model.dtype)
        self.weights_bytes = held_bytes(model)
        self.context_length = context_length
        self.eos_token_ids = eos_token_ids
        self.branching = Branching.TREE
        self.attention_calls = 0
        self._device = model.device
        self.returns_early = self._device.type == "cuda"
        self._nothing = PassThrough()
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def new_cache(self) -> KVCache:
        return DenseCache()

    def _forward(self, step: Step, cache: DenseCache) -> InFlight:
        return Forward(step, cache)

    def run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        forward: InFlight,
        taps: tuple[int, ...] = (),
        keep: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        arguments: dict[str, Any] = {"past_key_values": self._nothing, "use_cache": True}
        if self._keeps_rows:
            # a tensor of row indices even for all rows: without one, Gemma 4 takes a number and slices its mask too
            arguments["logits_to_keep"] = torch.arange(token_ids.shape[1], device=self._device) if keep is None else keep
        token = FORWARD.set(forward)
        try:
            with tapped(decoder_layers(self.model), taps) if taps else nullcontext({}) as captured:
                logits = self.model(input_ids=token_ids, position_ids=positions, **arguments).logits[0]
        finally:
            FORWARD.reset(token)
        self.attention_calls = forward.attention_calls
        return logits if keep is None or self._keeps_rows else logits[keep], captured
