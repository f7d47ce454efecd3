"""Entries: the kernels that are called from outside. Each is read from disk, or compiled, on first use."""

from __future__ import annotations

from functools import cache

from paceline.kernels.compiled import Kernel

STEP = Kernel("native.decoder.step")
"""One thread's part of a step: (thread, address of a CALL record)."""
DRAFT = Kernel("native.drafting.draft")
"""One thread's part of a draft: (thread, address of a DRAFT record)."""
IDLE, WORK, LEAD = (Kernel(f"native.pool.{part}") for part in ("idle", "work", "lead"))
"""Of a pool of threads: idling for so many turns, a worker's endless loop, and the caller's part."""
READ = Kernel("native.bench_reading.read")
"""One thread's part of measuring memory bandwidth: (thread, address of a READING record)."""
TOGETHER = Kernel("native.bench_together.together")
"""One thread's part of measuring parallel scaling: (thread, address of a TOGETHER record)."""
PRODUCT_WORDS = 10


@cache
def packer(name: str) -> Kernel:
    """One thread's part of packing a matrix in a format: (thread, address of a PACKING record)."""
    return Kernel("native.packer.packer", name)


@cache
def product(name: str) -> Kernel:
    """The product of a format."""
    return Kernel("native.products.product", name, words=PRODUCT_WORDS)
