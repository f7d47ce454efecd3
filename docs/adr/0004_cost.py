"""The numbers of ADR 0004: products of a 4864 x 896 matrix on one thread, by format and rows, interleaved; medians.

Weights come from memory: copies are walked in turn until they fill many times the last cache. The floor is torch's sum over as
many bytes. Run it on a quiet machine.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from paceline.kernels.native.arena import Arena
from paceline.kernels.native.entries import product
from paceline.kernels.native.formats import FORMATS
from paceline.kernels.native.packed import pack
from paceline.kernels.native.tiles import MOST_ROWS

OUTPUTS, INPUTS, COLD_BYTES, TURNS = 4864, 896, 250_000_000, 9
ROWS = tuple(rows for rows in (1, 2, 4, 8, 12) if rows <= MOST_ROWS)

torch.set_num_threads(1)
times: dict[tuple[str, int], list[float]] = {}
sizes: dict[str, int] = {}
jobs = []
for name, form in FORMATS.items():
    packed, arena = pack(torch.randn(OUTPUTS, INPUTS) * 0.02, form), Arena()
    sizes[name] = packed.data.nbytes
    copies = [arena.empty(*packed.data.shape).copy_(packed.data) for _ in range(COLD_BYTES // packed.data.nbytes)]
    jobs.append((name, packed, copies, product(name).function))
plain = torch.zeros(COLD_BYTES // 4)
for _ in range(TURNS):
    began = perf_counter()
    plain.sum()
    times.setdefault(("floor", 1), []).append((perf_counter() - began) * 1e9 / plain.nbytes)
    for name, packed, copies, multiply in jobs:
        for rows in ROWS:
            activations, outputs = torch.zeros(2 * INPUTS * rows), torch.zeros(rows, packed.outputs)
            place = (packed.data.shape[1], INPUTS, outputs.data_ptr(), outputs.stride(0) * 4, 0, packed.panels, 0)
            began = perf_counter()
            for copy in copies:
                multiply(rows, activations.data_ptr(), copy.data_ptr(), *place)
            times.setdefault((name, rows), []).append((perf_counter() - began) / len(copies))
print(f"read bandwidth: {1 / median(times['floor', 1]):.1f} GB/s")
for name in FORMATS:
    one = median(times[name, 1])
    rates = ", ".join(f"{rows}: {median(times[name, rows]) / one:.2f}" for rows in ROWS)
    print(f"{name}: one row {one * 1e6:.0f} us, {sizes[name] / one / 1e9:.1f} GB/s; cost by rows over one row: {rates}")
