"""The Triton kernels compile for real devices, without having one; the interpreter accepts more than the compiler does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

PROGRAM = """
import sys
import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from paceline.kernels import attention_tiling, draft_choices, fused_sampling, residual_norms, rotary, row_products, slot_moves
from paceline.kernels import tree_attention
from paceline.models.base import DTYPES

def compiled(kernel, constants, warps=4, stages=3, **types):
    names = kernel.arg_names
    # or it would be compiled as a kernel that is never run
    assert {one.name for one in kernel.params if one.is_constexpr} <= constants.keys(), kernel.fn.__name__
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    done = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": stages})
    assert done.metadata.shared <= 99 << 10, f"{done.metadata.shared} bytes of shared memory"
    return done.asm["ptx"]

capability, head, page = map(int, sys.argv[1:4])
early = capability >= 90
query, pages = sys.argv[4:]
sizes = dict(value_dim=head, value_lines=head, split_keys=512, near_keys=128, near_splits=16)
tiling = attention_tiling.Tiling.of(32, 8, head, 4 if query == "fp32" else 2)
tile = dict(kv_heads=8, group=4, key_dim=head, key_lines=head, page_size=page, tile_lines=tiling.rows, block_keys=tiling.keys)
scaled = query != pages
flags = dict(capped=True, scaled=scaled, sunk=True, wide=False, early=early)
flags |= {} if scaled else dict(key_scales=None, value_scales=None)
floats = dict.fromkeys(("key_scales", "value_scales", "mixed", "peaks", "masses", "sinks", "logits", "cuts"), "*fp32")
words = dict.fromkeys(("positions", "items", "blocks", "tail", "tokens", "counts"), "*i32")
types = floats | words | dict(query="*" + query, keys="*" + pages, values="*" + pages, out="*" + query, scale="fp32", cap="fp32")
for height in (tiling, tiling.tall)[: 1 + (query != "fp32" and head <= 128)]:
    for walks in (False, True):
        own = dict(walks=walks, tile_lines=height.rows)
        text = compiled(tree_attention._attend_splits, sizes | tile | flags | own, stages=height.stages, **types)
        assert query == "fp32" or "mma" in text, "no tensor cores"
        assert "tf32" not in text, "numbers are rounded"
compiled(tree_attention._merge_splits, sizes | dict(heads=32, sunk=True, early=early), **types)
types |= dict(numbers="*fp64", values="*fp64", blocks="i32")
compiled(fused_sampling._best_of_block, dict(block=1024, cutting=True), **types)
compiled(fused_sampling._best_of_row, dict(lines=128, cutting=True), **types, doubts="*i1", chosen="*i32")
compiled(draft_choices._best_and_mass, dict(block=1024), **types, choices="*i32")
compiled(draft_choices._chosen, dict(lines=128, follows=True), **types, found="*i32", shares="*fp32", following="*i32")
compiled(slot_moves._moved, dict(words=head, block=1024), addresses="*i64", places="*i64")
own = dict.fromkeys(("rows", "weights", "out", "queries", "keys", "values"), "*" + query)
own |= dict.fromkeys(("sums", "bias", "parts", "part_bias", "residual", "weight", "epsilon", "query_norm", "key_norm"), "*fp32")
own |= dict.fromkeys(("growth", "cosines", "sines", "behind_weight"), "*fp32")
own |= dict(positions="*i32", destinations="*i32", epsilon="fp32")
limit = torch.finfo(DTYPES[query]).max
for rows in (16, 64, 128, 256, 512, 1024):
    for kernel, matrices in ((row_products._product, 1), (row_products._gated_product, 2)):
        for described in (False, True)[: 1 + (early and query != "fp32" and rows > 64)]:
            tile = row_products.Tile.of(torch.empty(rows, 64, dtype=DTYPES[query], device="meta"), matrices, described)
            sides = dict(tile_outputs=tile.outputs, tile_rows=tile.rows, tile_inputs=tile.inputs, wide=False, early=early)
            sides |= dict(together=rows > 256) if matrices == 1 else dict(silu=rows > 64, biased=True, limit=limit)
            held = [f"tensordesc<{query}[{side},{tile.inputs}]>" for side in (tile.rows, tile.outputs)] if described else []
            kinds = own | dict(parts="i32") | dict(zip(("rows", "weights"), held))
            text = compiled(kernel, sides | dict(described=described), tile.warps, tile.stages, **kinds)
            assert query == "fp32" or "mma" in text, "no tensor cores"
            assert "tf32" not in text, "numbers are rounded"
            assert ("cp.async.bulk.tensor" in text) == described, "tiles are not copied by descriptors"
norm = dict(width=head * 32, lines=head * 32, part_count=2, biased=True, behind=True, centred=False, early=early)
for shape in (dict(normed=True), dict(normed=False, weight=None)):
    compiled(residual_norms._joined, norm | shape | dict(behind_bias=None, bias=None), **own)
heads = dict(heads=32, kv_heads=8, size=head, lines=head, rotary=head // 2, part_count=1, together=8, limit=limit)
for shape in (dict(grows=True), dict(grows=False, growth=None)):
    compiled(rotary._turned, heads | shape | dict(biased=True, normed=True, early=early), **own)
"""


@pytest.mark.full
@pytest.mark.parametrize(("head", "page"), [(128, 16), (64, 64), (128, 64), (256, 64)])
@pytest.mark.parametrize(
    ("capability", "query", "pages"),
    [
        (80, "fp16", "fp16"),
        (80, "bf16", "i8"),
        (80, "fp32", "fp32"),
        (90, "bf16", "bf16"),
        (90, "bf16", "fp8e4nv"),
        (90, "fp32", "fp32"),
    ],
)
def test_the_kernels_compile(capability: int, query: str, pages: str, head: int, page: int) -> None:
    """Head sizes of real models, pages of the engine's size, within the shared memory of the smallest devices."""
    command = [sys.executable, "-c", PROGRAM, *map(str, (capability, head, page)), query, pages]
    ran = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
