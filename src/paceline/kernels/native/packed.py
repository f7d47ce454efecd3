"""Packed: matrices in a format, as the tiles read them (`formats`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from paceline.kernels.native.arena import Arena
from paceline.kernels.native.formats import GROUP, MOST_INPUTS, Format, padded
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
    """A matrix [N, K] of any floating type whose rows are had by slices: a tensor, or what makes them when they are asked for."""

    @property
    def shape(self) -> torch.Size: ...

    def __getitem__(self, rows: slice, /) -> torch.Tensor: ...


def pack(weight: Rows, form: Format, arena: Arena | None = None) -> Packed:
    """weight: [N, K]; slices of it begin and end with panels. Worked on in slices, so that little more than the result is held.

    Raises ValueError where so many inputs cannot be summed exactly.
    """
    outputs, inputs = weight.shape
    if form.activation_bits == 8 and inputs > MOST_INPUTS:
        raise ValueError(f"{inputs} inputs are more than the {MOST_INPUTS} that {form.name} can sum")
    data = (arena or Arena()).empty(padded(outputs, PANEL) // PANEL, form.panel_bytes(form.padded(inputs)))
    together = max(_SLICE // (PANEL * inputs), 1)
    for first in range(0, data.shape[0], together):
        data[first : first + together] = _panels(weight[first * PANEL : (first + together) * PANEL], form)
    return Packed(form, outputs, inputs, data)


_SLICE = 2**18
"""Numbers packed at a time, unless one panel has more: what is made of them on the way takes ten times their bytes."""


def _panels(weight: torch.Tensor, form: Format) -> torch.Tensor:
    """weight: [N, K]. uint8 [panels, panel_bytes]."""
    outputs, inputs = weight.shape
    panels = padded(outputs, PANEL) // PANEL
    full = torch.zeros(panels * PANEL, form.padded(inputs))
    full[:outputs, :inputs] = weight
    # [panels, groups, group, PANEL]: inputs outside, outputs inside
    grouped = full.view(panels, PANEL, -1, form.group(full.shape[1])).permute(0, 2, 3, 1).contiguous()
    if not form.scaled:
        return _bytes(_words(grouped, form)).reshape(panels, -1)
    whole, scales = _quantized(grouped, form)
    parts = [_bytes(scales), _bytes(_words(whole, form))]
    return torch.cat([part.view(*grouped.shape[:2], -1) for part in parts], dim=2).reshape(panels, -1)


def represented(weight: torch.Tensor, form: Format) -> torch.Tensor:
    """float32 [N, K]: what the packed weights stand for; the target that `--weights` names."""
    if form.scaled:
        outputs, inputs = weight.shape
        full = torch.zeros(outputs, form.padded(inputs))
        full[:, :inputs] = weight
        whole, scales = _quantized(full.view(outputs, -1, form.group(full.shape[1]), 1), form)
        return (whole * scales.float()).view(outputs, -1)[:, :inputs].contiguous()
    return weight.to(PLAIN[form.name]).float()


PLAIN = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "w16a16": torch.bfloat16}
"""What numbers of a format without scales are held in."""


def _quantized(groups: torch.Tensor, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """groups: float32 [..., group, outputs]. Whole numbers as float32 of the same shape, float16 scales [..., 1, outputs]."""
    largest = 2 ** (form.bits - 1) - 1
    # whole numbers are those of the rounded scale, so it may be subnormal; far below, rounding would cut the largest of them off
    scales = (groups.abs().amax(-2, keepdim=True) / largest).clamp(min=2.0**-21).half()
    return (groups / scales.float()).round().clamp(-largest - (form.bits == 4), largest), scales


def _words(values: torch.Tensor, form: Format) -> torch.Tensor:
    """values: [..., group, PANEL], whole numbers where the format has scales. The words, inputs before outputs."""
    match form.name:
        case "fp32":
            return values
        case "fp16":
            return values.half()
        case "bf16" | "w16a16":
            return _side_by_side(values.bfloat16(), 2)
        case "int8":
            return _side_by_side(values.to(torch.int8), 4)
        case "int4":
            # nibble i holds input 2 i, and nibble i + 4 the one behind it: each shift brings a pair into the halves of a lane
            nibbles = (values + form.excess).to(torch.int64).unflatten(-2, (GROUP // 8, 8))
            shifts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28]).view(8, 1)
            return (nibbles << shifts).sum(-2).to(torch.int32)
        case "w8a8":
            # what is too much where they are unsigned is taken off again by the sum of activations
            return _side_by_side((values + form.excess).to(torch.uint8 if form.excess else torch.int8), 4)
    raise ValueError(f"nothing packs the format {form.name!r}")


def _side_by_side(values: torch.Tensor, together: int) -> torch.Tensor:
    """values: [..., group, PANEL]. [..., group / together, PANEL, together]: so many inputs of an output share a word."""
    return values.unflatten(-2, (-1, together)).transpose(-1, -2).contiguous()


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)
