"""Shortage: recognises the errors that are raised where memory has run out."""

from __future__ import annotations

import torch


def memory_ended(error: BaseException) -> bool:
    """Whether an error means that a device, or this machine, has run out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


_WORDS = ("DefaultCPUAllocator", "Cannot allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""torch has an error class only for its own allocator of device memory: not for memory of this machine, nor for device memory
that graphs, libraries and Triton's modules take."""
