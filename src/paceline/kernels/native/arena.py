"""Arena: memory for packed weights on huge pages, if the system grants them.

Weights are read from beginning to end in every forward pass; with pages of 2 MiB instead of 4 KiB the processor translates
addresses 500 times less often (measured gain: 9 % for int8, 16 % for fp16, ADR 0004).
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod

import torch

_CHUNK_BYTES = 1 << 26
_HUGE_BYTES = 1 << 21
_LINE_BYTES = 64


class Arena:
    """Allocates uint8 tensors on separate cache lines; a chunk is freed as a whole. Unused memory is never touched."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, *shape: int) -> torch.Tensor:
        """uint8, not initialised."""
        count = prod(shape)
        if self._used + count > len(self._chunk):
            self._chunk, self._used = _huge(max(count, _CHUNK_BYTES)), 0
        taken = self._chunk[self._used : self._used + count].view(*shape)
        self._used = -(-(self._used + count) // _LINE_BYTES) * _LINE_BYTES
        return taken


def _huge(count: int) -> torch.Tensor:
    """uint8 [count], beginning on a huge page."""
    # private: huge pages for shared memory have a separate system setting, which is off nearly everywhere
    memory = mmap.mmap(-1, count + _HUGE_BYTES, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            # raised by a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % _HUGE_BYTES
    return whole[begin : begin + count]
