"""Device: whether the kernels written in Triton can run where a tensor lies."""

from __future__ import annotations

from importlib.util import find_spec

import torch

SERVED = {"cuda"}
"""Types of device; tests add "cpu", where Triton's interpreter stands in for a GPU."""


def served(device: torch.device) -> bool:
    return device.type in SERVED and find_spec("triton") is not None
