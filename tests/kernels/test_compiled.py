"""The Triton kernels compile for real devices, which needs no device; the interpreter accepts much that a compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

PROGRAM = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from paceline.kernels import fused_sampling, tree_attention

def compiled(kernel, constants, **types):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    return compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"enable_fp_fusion": True}).asm["ptx"]

query, pages = sys.argv[2:]
sizes = dict(value_dim=128, value_lines=128, split_keys=512)
tile = dict(kv_heads=8, group=4, key_dim=128, key_lines=128, page_size=16, tile_lines=32, block_keys=64)
scaled = query != pages
flags = dict(capped=True, scaled=scaled, wide=False) | ({} if scaled else dict(key_scales=None, value_scales=None))
floats = dict.fromkeys(("key_scales", "value_scales", "mixed", "peaks", "masses", "sinks", "logits", "cuts"), "*fp32")
words = dict.fromkeys(("positions", "tiles", "blocks", "tail", "tokens", "counts"), "*i32")
types = floats | words | dict(query="*" + query, keys="*" + pages, values="*" + pages, out="*" + query, scale="fp32", cap="fp32")
text = compiled(tree_attention._attend_split, sizes | tile | flags, **types)
assert query == "fp32" or "mma" in text, "no tensor cores"
compiled(tree_attention._merge_splits, sizes | dict(heads=32, sunk=True), **types)
types |= dict(numbers="*fp64", values="*fp64")
compiled(fused_sampling._best_of_chunk, dict(chunk=8192, block=1024), **types)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("capability", "query", "pages"),
    [(80, "fp16", "fp16"), (80, "bf16", "i8"), (90, "bf16", "bf16"), (90, "bf16", "fp8e4nv"), (90, "fp32", "fp32")],
)
def test_the_kernels_compile(capability: int, query: str, pages: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(capability), query, pages]
    ran = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
