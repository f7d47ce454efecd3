"""Grow: a larger checkpoint that computes the same function, so that speed can be measured at its size with real acceptance.

Depth: copies of the last block are added whose output projections (o_proj, down_proj) are zero: they leave the residual
stream as it is. Width: the added channels of the residual stream stay zero, and added heads and neurons end in columns of
zeros. RMSNorm divides by the mean over all channels, which becomes n/m as large when n channels become m, so its weight is
scaled by sqrt(n/m) and its eps by n/m. Only the weights that must be zero are; the others are random, so no engine can skip work.

Source: Net2Net (Chen et al. 2016), section 2: function-preserving transformations.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path

import torch
from safetensors import safe_open

from paceline.bench.errors import BenchError
from paceline.bench.grow_shape import Growth, Shape
from paceline.bench.stream import DTYPES, TensorPlan, write_tensors
from paceline.models.checkpoint import WEIGHTS, Checkpoint, inspected

MOST_PARAMETERS = 4_000_000_000
_SEED = 20
_COPIED = ("tokenizer", "special_tokens_map", "generation_config", "chat_template")


def grown(source: Path, folder: Path, growth: Growth) -> int:
    """Write the model of `source`, grown, to `folder`; returns its number of parameters.

    Raises BenchError if the architecture is not supported, or the size is smaller than the model, uneven or too large.
    """
    checkpoint = inspected(source)
    shape = Shape.of(checkpoint, growth)
    plans = list(_plans(checkpoint, shape))
    parameters, size = sum(plan.elements for plan in plans), sum(plan.size_bytes for plan in plans)
    folder.mkdir(parents=True, exist_ok=True)
    if parameters > MOST_PARAMETERS or size > shutil.disk_usage(folder).free:
        raise BenchError(
            f"grown like this the model would have {parameters / 1e6:.0f}M parameters, {size / 1e6:.0f} MB: too many"
        )
    write_tensors(folder / WEIGHTS, plans)
    (folder / "config.json").write_text(json.dumps(shape.config(checkpoint.config), indent=2) + "\n", encoding="utf-8")
    for file in source.iterdir():
        if file.is_file() and file.name.startswith(_COPIED):
            shutil.copyfile(file, folder / file.name)
    return parameters


@dataclass(frozen=True)
class _Held:
    """A tensor of the checkpoint, not yet read."""

    name: str
    shard: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def module(self) -> str:
        return self.name.split(".")[-2]

    def read(self) -> torch.Tensor:
        with safe_open(self.shard, "pt") as file:
            return file.get_tensor(self.name).float()


def _held(checkpoint: Checkpoint) -> Iterator[_Held]:
    """The tensors of the checkpoint. Raises BenchError for a dtype that is not a float, and for unsupported tensors."""
    for shard in checkpoint.shards:
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                view = file.get_slice(name)
                if view.get_dtype() not in DTYPES:
                    raise BenchError(f"'{checkpoint.name}' holds {view.get_dtype()} tensors: only floats can be grown")
                if name.count(".") < 1 or not view.get_shape():
                    raise BenchError(f"'{checkpoint.name}' holds '{name}', which has no place in a model that can be grown")
                if not name.endswith("rotary_emb.inv_freq"):
                    # recomputed when the model is loaded
                    yield _Held(name, shard, DTYPES[view.get_dtype()], tuple(view.get_shape()))


def _plans(checkpoint: Checkpoint, shape: Shape) -> Iterator[TensorPlan]:
    """The tensors of the grown model: the checkpoint's, padded, then those of the added blocks."""
    held = list(_held(checkpoint))
    noise = torch.Generator().manual_seed(_SEED)
    last = f"model.layers.{shape.layers[0] - 1}."
    for one in held:
        yield _plan(one.name, one, shape, noise)
    for layer in range(*shape.layers):
        for one in held:
            if one.name.startswith(last):
                yield _plan(f"model.layers.{layer}.{one.name.removeprefix(last)}", one, shape, noise)


def _plan(name: str, held: _Held, shape: Shape, noise: torch.Generator) -> TensorPlan:
    """A tensor of the grown model, made from one of the checkpoint; in added blocks under a different name."""
    after = shape.after(name, held.shape)
    # norms over a head keep their shape, whatever the width
    scale = sqrt(shape.share) if held.module.endswith("norm") and after != held.shape else 1.0
    dtype = held.dtype if scale == 1.0 else torch.float32
    return TensorPlan(name, dtype, after, partial(_made, held, after, scale, name != held.name, noise))


def _made(held: _Held, after: tuple[int, ...], scale: float, added: bool, noise: torch.Generator) -> torch.Tensor:
    ends = held.module in ("o_proj", "down_proj")
    if ends and added:
        return torch.zeros(after)
    tensor = held.read() * scale
    if ends or held.module == "embed_tokens":
        new = torch.zeros(after)
    else:
        # within the spread of the trained values, so that they do not determine the scale of a quantised row
        spread = float(tensor.std()) if tensor.numel() > 1 else 1.0
        new = (torch.rand(after, generator=noise) * 2 - 1) * spread
    new[tuple(slice(size) for size in tensor.shape)] = tensor
    return new
