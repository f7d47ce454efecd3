"""DeviceWeights: a Llama-form checkpoint on a GPU; linears that read the same rows are stored as one matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.kernels.residual_norms import Norm
from paceline.kernels.row_products import parts_of
from paceline.models.base import DTYPES
from paceline.models.forms import Form, Unsuited
from paceline.models.llama_tensors import Linear, LlamaTensors, Weighted, joined
from paceline.models.rotation import Rotation
from paceline.models.tensors import Tensors


@dataclass(frozen=True)
class Matrix:
    """weight: [outputs, inputs] in the model's dtype. bias: float32 [outputs]. parts: parts of the inputs, each summed alone."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    parts: int


@dataclass(frozen=True)
class Layer:
    """heads: norms of each query head and of each key head."""

    query_key_value: Matrix
    out: Matrix
    gate_up: Matrix
    down: Matrix
    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None
    heads: tuple[Norm, Norm] | None


BEYOND = 128
"""Positions past the longest text that can still be looked up: probes may lie there, whose results are never used."""


class DeviceWeights:
    """format: one of `DTYPES`, or None for the precision of the checkpoint. positions: of the longest text.

    rotations: layer type -> cosines and sines, float32 [positions + BEYOND, rotary / 2]. growth: factors of queries, float32
    [positions + BEYOND], or None. Raises Unsuited if the checkpoint lacks a tensor of its form, and for forms that the kernels
    do not support.
    """

    def __init__(
        self, form: Form, tensors: Tensors, rotation: Rotation, format: str | None, positions: int, device: torch.device
    ) -> None:
        if form.experts:
            raise Unsuited("it has experts")
        if form.family.wide_norms:
            raise Unsuited("all heads of its queries pass one norm together")
        source = LlamaTensors(form, tensors)
        # norms and biases are float32, whatever the checkpoint's dtype
        self.form, self.format = form, format or source.matrix_kind
        self._device, self.dtype = device, DTYPES[self.format]
        # bytes of all weights and tables
        self.held_bytes = 0
        self.embedding = self._held(source.embedding)
        # Gemma rounds it to the precision of its activations
        rounded = self.dtype if form.family.scales_embedding else torch.float64
        self.embedding_scale = float(torch.tensor(form.embedding_scale, dtype=rounded))
        self.layers = [self._layer(source, index) for index in range(len(form.layers))]
        self.last_norm = self._norm(source.last_norm())
        weight, bias = source.head()
        # so many outputs give enough programs without splitting, and the caller takes one sum
        tied = weight is source.embedding
        self.head = Matrix(self.embedding, None, 1) if tied else self._matrix((weight, bias), parts=1)
        source.all_read()
        self.rotations = {kind: self._turns(rotation, positions + BEYOND, kind) for kind in form.rotations}
        growth = form.query_growth
        self.growth = None if growth is None else self._held(growth.table(positions + BEYOND), torch.float32)

    def _layer(self, source: LlamaTensors, index: int) -> Layer:
        before, after, before_mlp, after_mlp, query, key = map(self._norm_or_none, source.norms(index))
        return Layer(
            self._matrix(joined(source.query_key_value(index))),
            self._matrix(source.out(index)),
            self._matrix(joined(source.gate_up(index)), parts=1),
            self._matrix(source.down(index)),
            *(before, after, before_mlp, after_mlp),
            (query, key) if query and key else None,
        )

    def _matrix(self, linear: Linear, parts: int = 0) -> Matrix:
        weight, bias = linear
        outputs, inputs = weight.shape
        return Matrix(self._held(weight), self._floats(bias), parts or parts_of(outputs, inputs))

    def _norm(self, norm: Weighted) -> Norm:
        weight, bias = norm
        return Norm(self._held(weight, torch.float32), self._floats(bias), self.form.epsilon)

    def _norm_or_none(self, norm: Weighted | None) -> Norm | None:
        return None if norm is None else self._norm(norm)

    def _turns(self, rotation: Rotation, positions: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        cosines, sines = rotation.tables(positions, kind)
        if cosines.shape[1] != self.form.rotary // 2:
            raise Unsuited("its rotation table does not fit its heads")
        return self._held(cosines, torch.float32), self._held(sines, torch.float32)

    def _floats(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        return None if bias is None else self._held(bias, torch.float32)

    def _held(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        held = tensor.to(self._device, dtype or self.dtype).contiguous()
        self.held_bytes += held.nbytes
        return held
