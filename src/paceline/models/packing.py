"""Weights: a Llama-form checkpoint, packed tensor by tensor for the native backend, with the records that compiled code reads."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from paceline.kernels.compiled import ready
from paceline.kernels.native import layout
from paceline.kernels.native.arena import Arena
from paceline.kernels.native.entries import packer, product
from paceline.kernels.native.formats import FORMATS, Format
from paceline.kernels.native.needs import highest_tile, laid_as, panels_together
from paceline.kernels.native.packed import PLAIN, Packed, Rows, pack
from paceline.kernels.native.vectors import PANEL
from paceline.kernels.precompiled import PRECOMPILED
from paceline.models.alternating import Alternating
from paceline.models.base import weights_name
from paceline.models.forms import Form, Unsuited
from paceline.models.free_memory import return_free_memory
from paceline.models.llama_tensors import Linear, LlamaTensors, Weighted, biases, joined
from paceline.models.rotation import Rotation
from paceline.models.tensors import Tensors
from paceline.torch_threads import alone, usable

_NO_NORM = (layout.NO_NORM, 0, 0, 0.0)
_FIRST_POSITIONS = 1024
_ROUTERS = "fp32"
"""Weight format of routers, which are small."""


class Weights:
    """format: a name of FORMATS, or None for the precision of the checkpoint. Raises Unsuited if a tensor is missing, is not of
    a float type, or is not part of the form.
    """

    def __init__(self, form: Form, tensors: Tensors, rotation: Rotation, format: str | None) -> None:
        self.form, self._rotation = form, rotation
        self._kept: list[Any] = []
        self._arena = Arena()
        self._source = LlamaTensors(form, tensors)
        self._embedding = self._source.embedding
        self.format = format or self._source.matrix_kind
        self._format = FORMATS[self.format]
        held = {self.format, *([_ROUTERS] if form.experts else [])}
        ready([*PRECOMPILED, *map(product, {*held, self.kv_format}), *map(packer, held)])
        layers, norms, matrices, experts = len(form.layers), [], [], []
        self._threads = usable()
        # torch's threads would occupy the cores that packing, and other work, needs
        with alone():
            for layer in range(layers):
                matrices += self._layer_matrices(layer)
                experts += self._layer_experts(layer)
                norms += self._layer_norms(layer)
                return_free_memory()
            matrices.append(self._matrix(*self._source.head()))
            norms += [self._norm(self._source.last_norm()), _NO_NORM]
            self._source.all_read()
        self.model = self._model(layers)
        self.matrices = np.array(matrices, layout.MATRIX)
        self.experts = np.array(experts, layout.MATRIX)
        self.norms = np.array(norms, layout.NORM)
        self.layers = np.zeros(layers, layout.LAYER_RECORD)
        self.layers["window"] = [layer.window for layer in form.layers]
        self.layers["score_scale"], self.layers["score_cap"] = form.score_scale, form.score_cap
        self._positions = 0
        self.rotate_up_to(_FIRST_POSITIONS)
        del self._source
        return_free_memory()

    @property
    def kv_format(self) -> str:
        """The format of keys and values: half precision unless weights are float32."""
        return "fp32" if self.format == "fp32" else "fp16"

    @property
    def widths(self) -> list[int]:
        """Outputs of a layer's matrices, padded to panels."""
        return [int(matrix["panels"]) * PANEL for matrix in self.matrices[: layout.MATRICES]]

    @cached_property
    def head_width(self) -> int:
        return int(self.matrices[-1]["panels"]) * PANEL

    @property
    def gated_width(self) -> int:
        """Outputs of an MLP's gate and up matrices together, padded to panels."""
        return int(self.experts["panels"][0]) * PANEL if len(self.experts) else self.widths[layout.GATE_UP]

    @property
    def _every(self) -> np.ndarray:
        return np.concatenate([self.matrices, self.experts])

    @property
    def widest_input(self) -> int:
        return int(self._every["inputs"].max())

    @property
    def joins_behind_norms(self) -> bool:
        """Whether any block's output is normalised before it is added to the residual stream."""
        kinds = self.norms["kind"][: layout.NORMS * len(self.layers)].reshape(-1, layout.NORMS)
        return bool(kinds[:, [layout.AFTER_ATTENTION, layout.AFTER_MLP]].any())

    @property
    def widest_row_bytes(self) -> int:
        """Bytes of the longest row of activations in the layout of tiles."""
        return int(self._every["row_bytes"].max())

    @property
    def held_bytes(self) -> int:
        """Bytes of all weights and tables."""
        tables = [table for pair in self._tables.values() for table in pair]
        return sum(kept.nbytes for kept in (*self._kept, *tables))

    @cached_property
    def read_bytes(self) -> int:
        """Bytes of weights that a forward pass of one row reads."""
        # a layer's router is listed twice
        _, first = np.unique(self.matrices["weights"], return_index=True)
        common, each = ((one["panels"] * one["panel_bytes"]).sum() for one in (self.matrices[first], self.experts))
        experts = self.form.experts
        return int(common + each * experts.chosen // experts.count) if experts else int(common)

    def rotate_up_to(self, positions: int) -> None:
        """Extend the rotation tables to at least this many positions; they double, so that it happens rarely."""
        if positions <= self._positions:
            return
        positions = max(positions, 2 * self._positions)
        # 0 until all tables exist: after an interrupt, the next call starts over
        self._positions = 0
        self._tables = {kind: self._rotation.tables(positions, kind) for kind in self.form.rotations}
        if any(cosine.shape[1] != self.form.rotary // 2 for cosine, _ in self._tables.values()):
            # compiled code takes the tables' width from the form
            raise Unsuited("its rotation table does not fit its heads")
        for index, layer in enumerate(self.form.layers):
            cosine, sine = self._tables[layer.rotary]
            self.layers[index]["cosine"], self.layers[index]["sine"] = cosine.data_ptr(), sine.data_ptr()
        if growth := self.form.query_growth:
            self._growth = growth.table(positions)
            self.layers["growth"] = self._growth.data_ptr()
        self._positions = positions

    def _model(self, layers: int) -> np.ndarray:
        form = self.form
        self._embedding = self._embedding.to(PLAIN.get(self.format, self._embedding.dtype))
        self._kept.append(self._embedding)
        record = np.zeros(1, layout.MODEL)
        for field in ("hidden", "heads", "key_heads", "head_size", "rotary", "inner"):
            record[field] = getattr(form, field)
        if form.experts:
            record["experts"], record["chosen"] = form.experts.count, form.experts.chosen
            record["whole_weights"] = form.experts.whole_weights
        for field in ("embedding_scale", "residual_scale", "logit_cap"):
            record[field] = getattr(form, field)
        record["layers"] = layers
        record["kv_bytes"] = FORMATS[self.kv_format].bits // 8
        record["activation"] = layout.SILU if form.activation == "silu" else layout.GELU_TANH
        record["embedding"] = self._embedding.data_ptr()
        record["embedding_kind"] = layout.FLOAT_KINDS.index(weights_name(self._embedding.dtype))
        return record

    def _layer_matrices(self, layer: int) -> list[tuple[int, ...]]:
        source = self._source
        attention = [
            self._matrix(*_by_key_head(source.query_key_value(layer), self.form.key_heads)),
            self._matrix(*source.out(layer)),
        ]
        if self.form.experts:
            # the choice of experts must not depend on the weight format
            return [*attention, *[self._matrix(source.router(layer), form=FORMATS[_ROUTERS])] * 2]
        return [*attention, self._paired(*source.gate_up(layer)), self._matrix(*source.down(layer))]

    def _layer_experts(self, layer: int) -> list[tuple[int, ...]]:
        found, count = [], self.form.experts.count if self.form.experts else 0
        for expert in range(count):
            gate, up, down = self._source.expert(layer, expert)
            found += [self._paired((gate, None), (up, None)), self._matrix(down)]
        return found

    def _matrix(
        self, weight: Rows, bias: torch.Tensor | None = None, paired: bool = False, form: Format | None = None
    ) -> tuple[int, ...]:
        try:
            packed: Packed = pack(weight, form or self._format, self._arena, self._threads)
        except ValueError as error:
            raise Unsuited(f"one of its matrices cannot be packed: {error}") from error
        self._kept.append(packed.data)
        place = 0
        if bias is not None:
            wide = torch.zeros(packed.panels * PANEL)
            wide[: len(bias)] = bias
            self._kept.append(wide)
            place = wide.data_ptr()
        data, inputs, form = packed.data, packed.padded_inputs, packed.form
        multiplied_by = product(form.name).address
        return (
            multiplied_by,
            data.data_ptr(),
            data.shape[1],
            packed.panels,
            inputs,
            form.row_bytes(inputs),
            highest_tile(form),
            panels_together(form, data.shape[1]),
            laid_as(form),
            paired,
            place,
        )

    def _paired(self, gate: Linear, up: Linear) -> tuple[int, ...]:
        bias = biases([gate, up], lambda parts: Alternating(*parts)[:])
        return self._matrix(Alternating(gate[0], up[0]), bias, paired=True)

    def _layer_norms(self, layer: int) -> list[tuple[Any, ...]]:
        *common, query, key = map(self._norm, self._source.norms(layer))
        if self.form.family.wide_norms:
            query, key = [(layout.WIDE_RMS, *norm[1:]) for norm in (query, key)]
        return [*common, query, key]

    def _norm(self, norm: Weighted | None) -> tuple[Any, ...]:
        if norm is None:
            return _NO_NORM
        weight, bias = norm
        self._kept += [weight] if bias is None else [weight, bias]
        if bias is None:
            return (layout.RMS, weight.data_ptr(), 0, self.form.epsilon)
        return (layout.LAYER, weight.data_ptr(), bias.data_ptr(), self.form.epsilon)


def _by_key_head(linears: list[Linear], key_heads: int) -> Linear:
    """Queries, keys and values as one matrix: for each key head its queries, its key and its value. So a thread that computes
    some of the panels has all that it needs to attend for these heads."""

    def together(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([part.unflatten(0, (key_heads, -1)) for part in parts], dim=1).flatten(0, 1)

    return joined(linears, together)
