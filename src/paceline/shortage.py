"""Shortage: what is raised where memory has ended."""

from __future__ import annotations

import torch


def memory_ended(error: BaseException) -> bool:
    """Whether this says that a device, or this machine, has no more memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # torch has no class of its own for memory of this machine
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("DefaultCPUAllocator", "Cannot allocate memory")
    )
