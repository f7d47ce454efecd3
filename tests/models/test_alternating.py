"""Alternating: rows of two matrices that take turns panel by panel, for any slice."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels.native.vectors import PANEL
from paceline.models.alternating import Alternating


@pytest.mark.parametrize("outputs", [1, PANEL, 2 * PANEL + 3])
@pytest.mark.parametrize("inputs", [(), (5,)])
def test_panels_of_the_two_matrices_alternate(outputs: int, inputs: tuple[int, ...]) -> None:
    gate, up = torch.randn(outputs, *inputs), torch.randn(outputs, *inputs)
    both = Alternating(gate, up)
    panels = both[:].view(-1, 2, PANEL, *inputs)
    assert both[:].shape == both.shape
    for place, part in enumerate((gate, up)):
        rows = panels[:, place].flatten(0, 1)
        assert torch.equal(rows[:outputs], part)
        assert not rows[outputs:].any()
    for panel in range(both.shape[0] // PANEL):
        # slices as packing requests them: the last may extend past the end
        assert torch.equal(both[panel * PANEL : (panel + 3) * PANEL], both[:][panel * PANEL : (panel + 3) * PANEL])
