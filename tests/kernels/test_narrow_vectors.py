"""The same kernels on a narrower machine: LLVM is told to compile for AVX2, or for no fused multiply-add at all."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

_AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+64bit,+cmov,+cx8,+fxsr"

PRODUCT = """
import ctypes, torch
from paceline.kernels.native.formats import FORMATS, pack, represented
from paceline.kernels.native.products import product_address
from paceline.kernels.native.tiles import MOST_ROWS
from paceline.kernels.native.vectors import LANES
assert LANES == 8
weight, rows = torch.randn(100, 64), torch.randn(MOST_ROWS, 64)
for name in ("fp32", "int4"):
    packed = pack(weight, FORMATS[name])
    product = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)(product_address(name))
    def times(some):
        tile, out = some.t().contiguous(), torch.zeros(len(some), packed.panels * 32)
        place = (packed.data.data_ptr(), packed.data.shape[1], 64, out.data_ptr(), 4 * out.shape[1], 0, packed.panels, 0)
        product(len(some), tile.data_ptr(), *place)
        return out[:, :100]
    alone = torch.cat([times(row[None]) for row in rows])
    assert torch.equal(times(rows), alone)
    assert torch.allclose(alone, rows @ represented(weight, FORMATS[name]).t(), atol=1e-4)
"""

REFUSED = """
from paceline.models.load import load_model
print(type(load_model("paceline-14m-draft")).__name__)
"""


def narrowed(script: str, name: str, features: str) -> str:
    told = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    return subprocess.run([sys.executable, "-c", script], env=told, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names features of x86-64")
class TestNarrow:
    def test_avx2_gives_every_row_its_own_bits(self) -> None:
        if not llvm.get_host_cpu_features().get("avx2"):
            pytest.skip("this processor has no AVX2")
        narrowed(PRODUCT, "haswell", _AVX2)

    def test_without_fused_multiply_add_transformers_runs_the_model(self) -> None:
        assert narrowed(REFUSED, "x86-64", "+sse,+sse2,+cmov,+cx8,+fxsr,+64bit").strip() == "HubModel"
