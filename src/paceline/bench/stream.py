"""Write a safetensors file one tensor at a time, so that a large model is never in memory as a whole."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The supported floating-point types, by their names in the format."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorPlan:
    """A tensor that is made only when it is written. dtype: one of DTYPES."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.itemsize


def write_tensors(file: Path, plans: Many[TensorPlan]) -> None:
    """Make and write every tensor in order. Raises ValueError if a tensor does not have its planned shape."""
    header, place = {}, 0
    for plan in plans:
        entry = {"dtype": _NAMES[plan.dtype], "shape": plan.shape, "data_offsets": [place, place + plan.size_bytes]}
        header[plan.name], place = entry, place + plan.size_bytes
    text = json.dumps({**header, "__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for plan in plans:
            tensor = plan.make().to(plan.dtype).contiguous()
            if tuple(tensor.shape) != plan.shape:
                raise ValueError(f"tensor '{plan.name}' was made {tuple(tensor.shape)}, not {plan.shape}")
            stream.write(tensor.view(torch.uint8).numpy().tobytes())
