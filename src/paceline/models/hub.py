"""HubModel: any transformers causal language model whose attention goes through `AttentionInterface`.

The model is untouched. One forward carries a flat ragged step: prefill chunks, plain decodes and draft trees of many
sequences side by side, keys and values in the engine's own slabs (`attention.py` is the seam).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from paceline.cache.base import Branching, KVCache
from paceline.cache.dense import DenseCache
from paceline.models.attention import FORWARD, Forward, InFlight, PassThrough
from paceline.models.base import LanguageModel, Scores, weights_name
from paceline.models.taps import decoder_layers, tapped
from paceline.step import Step


class HubModel(LanguageModel):
    """model: a causal LM in eval mode, switched to the attention named `attention.NAME` by whoever loads it."""

    def __init__(self, model: Any, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self.model, self.name = model, name
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.weights = weights_name(model.dtype)
        self.weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
        self.context_length = context_length
        self.eos_token_ids = eos_token_ids
        self.branching = Branching.TREE
        self.attention_calls = 0
        self._device = model.device
        self._nothing = PassThrough()
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def new_cache(self) -> KVCache:
        return DenseCache()

    def _forward(self, step: Step, cache: DenseCache) -> InFlight:
        return Forward(step, cache)

    @torch.inference_mode()
    def score(self, step: Step, cache: DenseCache, taps: Iterable[int] = ()) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        device = self._device
        wants = step.wants.to(device)
        arguments: dict[str, Any] = {
            "input_ids": step.token_ids[None].to(device),
            "position_ids": step.positions[None].to(device),
            "past_key_values": self._nothing,
            "use_cache": True,
        }
        everything = step.wanted_rows == tuple(range(len(step.tokens)))
        if self._keeps_rows and not everything:
            arguments["logits_to_keep"] = wants
        forward = self._forward(step, cache)
        token = FORWARD.set(forward)
        try:
            wanted = tuple(taps)
            if wanted:
                with tapped(decoder_layers(self.model), wanted) as captured:
                    logits = self.model(**arguments).logits[0]
            else:
                captured = {}
                logits = self.model(**arguments).logits[0]
        finally:
            FORWARD.reset(token)
        self.attention_calls = forward.attention_calls
        if not self._keeps_rows and not everything:
            logits = logits[wants]
        return Scores(logits.float(), {layer: hidden[0, wants] for layer, hidden in captured.items()})
