"""The values that packed weights represent, computed by torch: the target that `--weights` names."""

from __future__ import annotations

import torch

from paceline.kernels.native.formats import GROUP, Format
from paceline.kernels.native.packed import PLAIN

_SMALLEST = 2.0**-21


def represented(weight: torch.Tensor, form: Format) -> torch.Tensor:
    """float32 [N, K]. weight: [N, K]."""
    if not form.scaled:
        return weight.to(PLAIN[form.name]).float()
    outputs, inputs = weight.shape
    padded = form.padded(inputs)
    full = torch.zeros(outputs, padded)
    full[:, :inputs] = weight
    groups = full.view(outputs, -1, GROUP if form.by_group else padded)
    largest = 2 ** (form.bits - 1) - 1
    scales = (groups.abs().amax(-1, keepdim=True) / largest).clamp(min=_SMALLEST).half().float()
    whole = (groups / scales).round().clamp(-largest - (form.bits == 4), largest)
    return (whole * scales).view(outputs, -1)[:, :inputs].contiguous()
