"""The same kernels on a narrower machine: LLVM is told to compile for AVX2, or for no fused multiply-add at all."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

_TESTS = str(Path(__file__).parents[1])
_AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+64bit,+cmov,+cx8,+fxsr"

PRODUCT = """
import sys, torch
sys.path.insert(0, {tests!r})
from compiled import as_read, multiplied
from paceline.kernels.native.formats import FORMATS, SUMMED
from paceline.kernels.native.packed import pack
from paceline.kernels.native.tiles import MOST_ROWS
from paceline.kernels.native.vectors import IN_PAIRS, LANES, MATRIX_UNIT, MULTIPLIES_BYTES, PAIR_PRODUCTS
from represented import represented
assert (LANES, MULTIPLIES_BYTES, bool(PAIR_PRODUCTS), MATRIX_UNIT) == ({lanes}, {fours}, {pairs}, False)
inputs = 2 * SUMMED + 70
weight, rows = torch.randn(100, inputs) / 4, torch.randn(MOST_ROWS, inputs)
for name in ("fp32", "w16a16", "int8", "int4", "w8a8", "w4a8"):
    packed = pack(weight, FORMATS[name])
    alone = torch.cat([multiplied(packed, row[None]) for row in rows])
    for count in range(2, MOST_ROWS + 1):
        assert torch.equal(multiplied(packed, rows[:count]), alone[:count]), (name, count)
    wanted = as_read(rows, packed.form) @ represented(weight, FORMATS[name]).t()
    assert torch.allclose(alone[:, :100], wanted, atol=2e-2 if name[2:] == "a8" else 2e-3 if name != "fp32" else 1e-4), name
print(IN_PAIRS)
"""

PAIRS = """
import sys, torch
sys.path.insert(0, {tests!r})
from compiled import multiplied
from paceline.kernels.native.formats import FORMATS
from paceline.kernels.native.packed import pack
from paceline.kernels.native.vectors import MULTIPLIES_HALVES
draw = torch.Generator().manual_seed(1)
weight, rows = torch.randn(64, 1024, generator=draw), torch.randn(5, 1024, generator=draw)
print(MULTIPLIES_HALVES, multiplied(pack(weight, FORMATS["w16a16"]), rows).view(torch.int32).tolist())
"""

TURNED = """
import sys, torch
sys.path.insert(0, {tests!r})
from compiled import TURNED, call
from paceline.kernels.native.tiles import MOST_ROWS
from paceline.kernels.native.vectors import LANES
assert LANES == 4 < MOST_ROWS
for rows in range(1, MOST_ROWS + 1):
    source, size = torch.randn(rows, 3 * LANES + 5), 3 * LANES * rows
    target = torch.full((size + 9,), -7.0)
    call(TURNED, source, source.stride(0) * 4, count=rows, more=3, out=target)
    assert torch.equal(target[:size].view(-1, rows), source[:, : 3 * LANES].T), rows
    assert bool((target[size:] == -7.0).all()), rows
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
    @pytest.mark.parametrize(("name", "in_pairs"), [("haswell", False), ("znver3", True)])
    def test_avx2_gives_every_row_its_own_bits(self, name: str, in_pairs: bool) -> None:
        if not llvm.get_host_cpu_features().get("avx2"):
            pytest.skip("this processor has no AVX2")
        said = narrowed(PRODUCT.format(tests=_TESTS, lanes=8, fours=False, pairs=True), name, _AVX2)
        assert said.strip() == str(in_pairs)

    def test_more_rows_than_a_register_has_lanes_are_turned(self) -> None:
        narrowed(TURNED.format(tests=_TESTS), "haswell", _AVX2.replace("+avx2", "-avx2"))

    def test_avx512_without_products_of_pairs_computes_products(self) -> None:
        """As on the first processors with AVX-512, and on NEON."""
        if not llvm.get_host_cpu_features().get("avx512f"):
            pytest.skip("this processor has no AVX-512")
        narrowed(PRODUCT.format(tests=_TESTS, lanes=16, fours=False, pairs=False), "knl", _AVX2 + ",+avx512f,+avx512cd")

    def test_pairs_of_bfloat16_have_the_bits_that_their_instruction_gives(self) -> None:
        features = llvm.get_host_cpu_features()
        if not features.get("avx512bf16") or features.get("amx-bf16"):
            pytest.skip("this processor has no such instruction, or a matrix unit that is used instead")
        name, script = llvm.get_host_cpu_name(), PAIRS.format(tests=_TESTS)
        found = [narrowed(script, name, features.flatten() + more).split(" ", 1) for more in ("", ",-avx512bf16")]
        assert [one for one, _ in found] == ["True", "False"]
        assert found[0][1] == found[1][1]

    def test_vectors_multiply_bytes_where_the_matrix_unit_is_not_to_be_used(self) -> None:
        features = llvm.get_host_cpu_features()
        if not (features.get("amx-int8") and features.get("avx512vnni")):
            pytest.skip("this processor has no AMX: the other tests of products run on its vectors")
        without = features.flatten().replace("+amx-int8", "-amx-int8")
        narrowed(PRODUCT.format(tests=_TESTS, lanes=16, fours=True, pairs=True), llvm.get_host_cpu_name(), without)

    def test_without_fused_multiply_add_transformers_runs_the_model(self) -> None:
        assert narrowed(REFUSED, "x86-64", "+sse,+sse2,+cmov,+cx8,+fxsr,+64bit").strip() == "HubModel"
