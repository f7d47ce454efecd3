"""Shortage: what is raised where memory has ended."""

from __future__ import annotations

import torch


def memory_ended(error: BaseException) -> bool:
    """Whether this says that a device, or this machine, has no more memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


_WORDS = ("DefaultCPUAllocator", "Cannot allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""torch has a class of its own only for what its allocator of a device's memory is asked for: not for memory of this machine, nor
for what graphs, libraries and Triton's modules take of the device."""
