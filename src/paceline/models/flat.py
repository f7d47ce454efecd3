"""FlatModel: a model that scores a step in one forward pass over all of its rows, side by side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch

from paceline.cache.base import KVCache
from paceline.models.base import LanguageModel, Scores
from paceline.step import Step


class FlatModel(LanguageModel):
    """Prefill chunks, plain decodes and draft trees of many sequences are rows of one forward pass."""

    _device: torch.device

    @abstractmethod
    def _forward(self, step: Step, cache: Any) -> Any:
        """Where the forward pass of a staged step finds and stores keys and values; passed to `run`."""

    @abstractmethod
    def run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        forward: Any,
        taps: tuple[int, ...] = (),
        keep: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """The forward pass. token_ids, positions: int64 [1, T]. keep: int64 [W], rows whose logits are wanted; None for all.

        Returns logits [W, V] in any float dtype, and the taps, layer -> [1, T, hidden].
        """

    @torch.inference_mode()
    def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
        device = self._device
        wants = sent(step.wants, device)
        forward = self._forward(step, cache)
        token_ids, positions = sent(step.token_ids[None], device), sent(step.positions[None], device)
        logits, captured = self.run(token_ids, positions, forward, tuple(taps), None if step.wants_all else wants)
        return Scores(logits.float(), {layer: hidden[0, wants] for layer, hidden in captured.items()})


def sent(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor, of any shape and dtype, on a device. On a GPU it is copied asynchronously, from pinned memory."""
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)
