"""Device: whether the Triton kernels can run on a device."""

from __future__ import annotations

from importlib.util import find_spec
from logging import getLogger

import torch

SERVED = {"cuda"}
"""Supported device types; tests add "cpu", where Triton's interpreter replaces a GPU."""


def served(device: torch.device) -> bool:
    return device.type in SERVED and find_spec("triton") is not None


def give_up(device: torch.device, error: Exception) -> None:
    """Stop using this device type after a kernel failed there. It may lack a C compiler, or be too old for Triton."""
    SERVED.discard(device.type)
    said = str(error).strip().splitlines()
    getLogger("paceline").warning("the kernels for this device do not run: %s", said[0] if said else type(error).__name__)
