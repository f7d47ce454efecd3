"""Alternating: an MLP's gate and up matrices as one, with panels of the two in turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.kernels.native.formats import padded
from paceline.kernels.native.vectors import PANEL


@dataclass(frozen=True)
class Alternating:
    """gate, up: two tensors of one shape, [N, ...]. Rows are assembled on demand: a copy of both would be the largest allocation
    during packing. Each is padded with zeros to whole panels.
    """

    gate: torch.Tensor
    up: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return torch.Size((2 * padded(self.gate.shape[0], PANEL), *self.gate.shape[1:]))

    def __getitem__(self, rows: slice) -> torch.Tensor:
        """A slice of rows that begins and ends at panel boundaries."""
        first, last, _ = (bound // PANEL for bound in rows.indices(self.shape[0]))
        panels = self.gate.new_zeros(last - first, PANEL, *self.gate.shape[1:])
        for place, panel in enumerate(range(first, last)):
            part = (self.gate, self.up)[panel % 2][panel // 2 * PANEL :][:PANEL]
            panels[place, : len(part)] = part
        return panels.flatten(0, 1)
