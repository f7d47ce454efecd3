"""Packed: matrices in a format, as the tiles read them (`formats`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from paceline.kernels.native.arena import Arena
from paceline.kernels.native.entries import packer
from paceline.kernels.native.formats import GROUP, MOST_INPUTS, Format, padded
from paceline.kernels.native.layout import FLOAT_KINDS, PACKING
from paceline.kernels.native.threads import CONTENTION, granted, spread
from paceline.kernels.native.vectors import PANEL


@dataclass(frozen=True)
class Packed:
    """A matrix in a format. data: uint8 [panels, panel_bytes]; outputs N and inputs K before padding."""

    form: Format
    outputs: int
    inputs: int
    data: torch.Tensor

    @property
    def panels(self) -> int:
        return self.data.shape[0]

    @property
    def padded_inputs(self) -> int:
        return self.form.padded(self.inputs)


class Rows(Protocol):
    """A matrix [N, K] of any floating type that can be sliced by rows: a tensor, or an object that makes rows on demand."""

    @property
    def shape(self) -> torch.Size: ...

    def __getitem__(self, rows: slice, /) -> torch.Tensor: ...


def pack(weight: Rows, form: Format, arena: Arena | None = None, threads: int = 1) -> Packed:
    """Pack a matrix. weight: [N, K]. It is read in slices of whole panels, so that little more than the result is in memory.
    threads: most threads used for packing; torch may use others to produce a slice.

    Raises ValueError if sums over so many inputs would not be exact.
    """
    outputs, inputs = weight.shape
    if form.scaled_once and form.activation_bits == 8 and inputs > MOST_INPUTS:
        raise ValueError(f"{inputs} inputs are more than the {MOST_INPUTS} that {form.name} can sum")
    padded_inputs, panels = form.padded(inputs), padded(outputs, PANEL) // PANEL
    data = (arena or Arena()).empty(panels, form.panel_bytes(padded_inputs))
    together = max(_SLICE // (PANEL * inputs), 1)
    threads = granted(CONTENTION.allowed(threads))
    scratch = torch.empty(threads, PANEL, padded_inputs)
    call = np.zeros(1, PACKING)
    group = GROUP if form.by_group else padded_inputs
    call["inputs"], call["padded"], call["group"], call["group_bytes"] = inputs, padded_inputs, group, form.group_bytes(group)
    call["scratch"], call["panel_bytes"], call["threads"] = scratch.data_ptr(), data.shape[1], threads
    for first in range(0, panels, together):
        rows = weight[first * PANEL : (first + together) * PANEL]
        rows = (rows if rows.dtype in _KINDS else rows.float()).contiguous()
        target = data[first : first + together]
        call["source"], call["kind"], call["outputs"] = rows.data_ptr(), _KINDS.index(rows.dtype), len(rows)
        call["stride"], call["target"], call["panels"] = rows.stride(0) * rows.itemsize, target.data_ptr(), len(target)
        spread(packer(form.name).address, threads, call.ctypes.data)
    return Packed(form, outputs, inputs, data)


_SLICE = 2**21
"""Most numbers per slice, unless a single panel has more: slices may have to be assembled."""
PLAIN = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "w16a16": torch.bfloat16}
"""The dtype of each format without scales."""
_KINDS = [PLAIN[kind] for kind in FLOAT_KINDS]
