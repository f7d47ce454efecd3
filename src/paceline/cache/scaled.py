"""Narrow keys and values: one scale per token and head, so that a row's rounding does not depend on the rows beside it."""

from __future__ import annotations

import torch

NARROW = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""Formats and their largest value."""


def narrowed(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """rows: [..., D]. Returns them in a format of NARROW, and the float32 scales [...] that restore them (0 for zeros)."""
    rows = rows.float()
    scales = rows.abs().amax(-1) / NARROW[dtype]
    steps = rows / torch.where(scales > 0, scales, 1.0)[..., None]
    return (steps.round() if dtype is torch.int8 else steps).to(dtype), scales


def widened(rows: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows [..., D] as a kernel reads them."""
    return (rows.float() * scales[..., None]).to(dtype)
