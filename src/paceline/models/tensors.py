"""Tensors: a checkpoint's weights, read one at a time, so that no more than one of them is in memory unpacked."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from paceline.models.checkpoint import Checkpoint
from paceline.models.towers import text_name

_HEADLESS = "embed_tokens.weight"
_HEAD = "lm_head."
_MOST_MAPPED = 1 << 24
"""Bytes read of an open file: its mapped pages count as memory of this process until it is closed."""


class Tensors:
    """Reads by name and remembers what was never asked for. kinds: name -> the type held, as safetensors names it.

    Of a model that also sees only its language model is there, by the names that it has alone; of a model that was saved without
    its head, as embedding models are, the tensors have the names that they have below one.
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
        """None where there is none of that name. The file stays open for what is read next, until much of it is mapped."""
        if name not in self._places:
            return None
        shard, held = self._places[name]
        if self._open is None or self._open[0] != shard:
            # opened, its header is read: to do that for each of ten thousand experts takes longer than to read these
            self._open, self._mapped = (shard, safe_open(shard, "pt")), 0
        self.unread.discard(name)
        tensor = self._open[1].get_tensor(held).clone()
        self._mapped += tensor.nbytes
        if self._mapped > _MOST_MAPPED:
            self._open = None
        return tensor


def _below_a_head(name: str) -> str:
    return name if name.startswith(_HEAD) else f"model.{name}"
