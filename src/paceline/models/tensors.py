"""Tensors: a checkpoint's weights, read one at a time, so that no more than one of them is in memory unpacked."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from paceline.models.checkpoint import Checkpoint


class Tensors:
    """Reads by name and remembers what was never asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._places: dict[str, Path] = {}
        for shard in checkpoint.shards:
            with safe_open(shard, "pt") as file:
                self._places.update(dict.fromkeys(file.keys(), shard))
        self.unread = set(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def kinds(self) -> set[str]:
        """The types of all tensors, as safetensors names them: F32, F16, BF16 ..."""
        found = set()
        for shard in set(self._places.values()):
            with safe_open(shard, "pt") as file:
                found.update(file.get_slice(name).get_dtype() for name in file.keys())  # noqa: SIM118
        return found

    def find(self, name: str) -> torch.Tensor | None:
        """None where there is none of that name. The file is closed again, and its mapped pages with it."""
        if name not in self._places:
            return None
        with safe_open(self._places[name], "pt") as file:
            self.unread.discard(name)
            return file.get_tensor(name).clone()
