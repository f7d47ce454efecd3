"""Tensors: a checkpoint's weights, read one at a time, so that at most one tensor is in memory unpacked."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from paceline.models.checkpoint import Checkpoint
from paceline.models.towers import text_name

_HEADLESS = "embed_tokens.weight"
_HEAD = "lm_head."
_MOST_MAPPED = 1 << 24
"""Most bytes read from a file before it is closed: its mapped pages count as this process's memory while it is open."""


class Tensors:
    """Reads tensors by name; `unread` holds the names not read yet. kinds: name -> stored dtype, as safetensors names it.

    Of a vision-language model only the language model is listed, under the names of a text-only model. If a model was saved
    without its head, as embedding models are, its names get the prefix "model." that they have in a causal LM.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._places: dict[str, tuple[Path, str]] = {}
        self.kinds: dict[str, str] = {}
        for shard in checkpoint.shards:
            with safe_open(shard, "pt") as file:
                for held in file.keys():  # noqa: SIM118
                    name = text_name(held, checkpoint.config["model_type"])
                    if name is not None:
                        self._places[name] = shard, held
                        self.kinds[name] = file.get_slice(held).get_dtype()
        if _HEADLESS in self._places:
            self._places = {_below_a_head(name): place for name, place in self._places.items()}
            self.kinds = {_below_a_head(name): kind for name, kind in self.kinds.items()}
        self.unread = set(self._places)
        self._open: tuple[Path, safe_open] | None = None
        self._mapped = 0

    def find(self, name: str) -> torch.Tensor | None:
        """The tensor of this name, or None. The file stays open for the next read until `_MOST_MAPPED` bytes are mapped."""
        if name not in self._places:
            return None
        shard, held = self._places[name]
        if self._open is None or self._open[0] != shard:
            # opening reads the header: for each of ten thousand experts, that takes longer than reading the tensors
            self._open, self._mapped = (shard, safe_open(shard, "pt")), 0
        self.unread.discard(name)
        tensor = self._open[1].get_tensor(held).clone()
        self._mapped += tensor.nbytes
        if self._mapped > _MOST_MAPPED:
            self._open = None
        return tensor


def _below_a_head(name: str) -> str:
    return name if name.startswith(_HEAD) else f"model.{name}"
