"""Rotation: cosines and sines of rotary position embeddings (Su et al., arXiv:2104.09864), and position-dependent scales of
queries.

Frequencies for extended contexts come from transformers' own formulas. Its modelling files are not imported: they take another
second and 25 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

STILL = "still"
"""In place of a layer type: the layer does not rotate."""


class Rotation:
    """config: transformers' own. rotary: how many numbers of a head are rotated."""

    def __init__(self, config: Any, rotary: int) -> None:
        self._config, self._rotary = config, rotary

    def tables(self, positions: int, layer_type: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, float32 [positions, rotary / 2]. layer_type: "" if all layers rotate alike; or STILL."""
        if layer_type == STILL:
            return torch.ones(positions, self._rotary // 2), torch.zeros(positions, self._rotary // 2)
        frequencies, scaling = self._frequencies(layer_type)
        angles = torch.arange(positions).float()[:, None] * frequencies
        return angles.cos() * scaling, angles.sin() * scaling

    def _frequencies(self, layer_type: str) -> tuple[torch.Tensor, float]:
        """Frequencies, float32 [rotary / 2], and the factor of cosines and sines."""
        parameters = self._config.rope_parameters
        if layer_type:
            parameters = parameters[layer_type]
        if parameters["rope_type"] == "default":
            steps = torch.arange(0, self._rotary, 2).float() / self._rotary
            return 1.0 / parameters["rope_theta"] ** steps, 1.0
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scaling = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](self._config, None, layer_type=layer_type or None)
        return frequencies.float(), float(scaling)


@dataclass(frozen=True)
class QueryGrowth:
    """Queries at position p are multiplied by 1 + beta ln(1 + floor(p / length)), so that attention stays sharp in long texts.

    Source: the temperature of attention of Llama 4 and Ministral 3, after Nakanishi (arXiv:2501.19399).
    """

    beta: float
    length: int

    def table(self, positions: int) -> torch.Tensor:
        """float32 [positions]."""
        return 1 + self.beta * torch.log(1 + torch.floor(torch.arange(positions).float() / self.length))
