"""Weights: a Llama-form checkpoint packed for the native road, tensor by tensor, with the records that compiled code reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from paceline.kernels.compiled import ready
from paceline.kernels.native import layout
from paceline.kernels.native.arena import Arena
from paceline.kernels.native.entries import product
from paceline.kernels.native.formats import FORMATS
from paceline.kernels.native.needs import highest_tile, laid_as, panels_together
from paceline.kernels.native.packed import PLAIN, Packed, Rows, pack
from paceline.kernels.native.vectors import PANEL
from paceline.kernels.usual import USUAL
from paceline.models.alternating import Alternating
from paceline.models.base import weights_name
from paceline.models.forms import Form, Unsuited
from paceline.models.free_memory import return_free_memory
from paceline.models.rotation import Rotation
from paceline.models.tensors import Tensors

_KINDS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_NORMS = {
    layout.BEFORE_ATTENTION: "input_layernorm",
    layout.AFTER_ATTENTION: "post_attention_layernorm",
    layout.BEFORE_MLP: "pre_feedforward_layernorm",
    layout.AFTER_MLP: "post_feedforward_layernorm",
    layout.QUERY: "self_attn.q_norm",
    layout.KEY: "self_attn.k_norm",
}
_NO_NORM = (layout.NO_NORM, 0, 0, 0.0)
_Linear = tuple[torch.Tensor, torch.Tensor | None]
"""Weight and bias."""
_FIRST_POSITIONS = 1024
_IGNORED = "rotary_emb.inv_freq"


class Weights:
    """format: a name of FORMATS, or None for the precision of the checkpoint. Raises Unsuited where a tensor is missing, is of
    another type than a float, or is there without a meaning known here.
    """

    def __init__(self, form: Form, tensors: Tensors, rotation: Rotation, format: str | None) -> None:
        self.form, self._rotation = form, rotation
        self._kept: list[Any] = []
        self._arena = Arena()
        self._tensors = tensors
        # a rotation's frequencies are computed anew, whatever some files hold of them
        kinds = {kind for name, kind in tensors.kinds.items() if not name.endswith(_IGNORED)}
        if not kinds <= _KINDS.keys():
            raise Unsuited(f"it holds tensors of the type {min(kinds - _KINDS.keys())}")
        self._embedding = self._read("model.embed_tokens.weight", form.vocabulary, form.hidden)
        # what is stored in several precisions is in none of the halves
        self.format = format or (_KINDS[kinds.pop()] if len(kinds) == 1 else "fp32")
        self._format = FORMATS[self.format]
        ready([*USUAL, product(self.format), product(self.kv_format)])
        layers, norms, matrices = len(form.layers), [], []
        for index in range(layers):
            matrices += self._layer_matrices(f"model.layers.{index}.")
            norms += self._layer_norms(f"model.layers.{index}.")
            return_free_memory()
        self.model = self._model(layers)
        matrices.append(self._matrix(*self._head()))
        norms += [self._norm("model.norm", form.hidden), _NO_NORM]
        left = sorted(name for name in tensors.unread if not name.endswith(_IGNORED))
        if left:
            raise Unsuited(f"its tensor '{left[0]}' has no place in the Llama form")
        self.matrices = np.array(matrices, layout.MATRIX)
        self.norms = np.array(norms, layout.NORM)
        self.layers = np.zeros(layers, layout.LAYER_RECORD)
        self.layers["window"] = [layer.window for layer in form.layers]
        self.layers["score_scale"], self.layers["score_cap"] = form.score_scale, form.score_cap
        self._positions = 0
        self.rotate_up_to(_FIRST_POSITIONS)
        del self._tensors
        return_free_memory()

    @property
    def kv_format(self) -> str:
        """The format of keys and values: half precision wherever weights have less than float32."""
        return "fp32" if self.format == "fp32" else "fp16"

    @property
    def widths(self) -> list[int]:
        """Outputs of a layer's matrices, padded to panels."""
        return [int(matrix["panels"]) * PANEL for matrix in self.matrices[: layout.MATRICES]]

    @cached_property
    def head_width(self) -> int:
        return int(self.matrices[-1]["panels"]) * PANEL

    @property
    def widest_input(self) -> int:
        return int(self.matrices["inputs"].max())

    @property
    def joins_behind_norms(self) -> bool:
        """Whether any block's output passes a norm of its own before it is added."""
        kinds = self.norms["kind"][: layout.NORMS * len(self.layers)].reshape(-1, layout.NORMS)
        return bool(kinds[:, [layout.AFTER_ATTENTION, layout.AFTER_MLP]].any())

    @property
    def widest_row_bytes(self) -> int:
        """Bytes of the longest row of activations, laid out."""
        return int(self.matrices["row_bytes"].max())

    @property
    def held_bytes(self) -> int:
        """Bytes of all weights and tables."""
        tables = [table for pair in self._tables.values() for table in pair]
        return sum(kept.nbytes for kept in (*self._kept, *tables))

    @cached_property
    def read_bytes(self) -> int:
        """Bytes of weights that every forward reads."""
        return int((self.matrices["panels"] * self.matrices["panel_bytes"]).sum())

    def rotate_up_to(self, positions: int) -> None:
        """Make the rotation tables reach this many positions; they double, so that it happens rarely."""
        if positions <= self._positions:
            return
        positions = max(positions, 2 * self._positions)
        # none until all are there: whoever is interrupted in between begins anew
        self._positions = 0
        self._tables = {kind: self._rotation.tables(positions, kind) for kind in self.form.rotations}
        if any(cosine.shape[1] != self.form.rotary // 2 for cosine, _ in self._tables.values()):
            # compiled code steps through them by what the form says
            raise Unsuited("its rotation table does not fit its heads")
        for index, layer in enumerate(self.form.layers):
            cosine, sine = self._tables[layer.rotary]
            self.layers[index]["cosine"], self.layers[index]["sine"] = cosine.data_ptr(), sine.data_ptr()
        self._positions = positions

    def _head(self) -> _Linear:
        if not self.form.tied:
            return self._linear("lm_head", self.form.vocabulary, self.form.hidden)
        if "lm_head.weight" in self._tensors.kinds:
            # transformers ties them only where they are alike, whatever the configuration says
            head = self._read("lm_head.weight", self.form.vocabulary, self.form.hidden)
            if not torch.equal(head.to(self._embedding.dtype), self._embedding):
                return head, None
        return self._embedding, None

    def _model(self, layers: int) -> np.ndarray:
        form = self.form
        self._embedding = self._embedding.to(PLAIN.get(self.format, self._embedding.dtype))
        self._kept.append(self._embedding)
        record = np.zeros(1, layout.MODEL)
        for field in ("hidden", "heads", "key_heads", "head_size", "rotary", "inner", "vocabulary"):
            record[field] = getattr(form, field)
        for field in ("embedding_scale", "logit_cap"):
            record[field] = getattr(form, field)
        record["layers"] = layers
        record["kv_bytes"] = FORMATS[self.kv_format].bits // 8
        record["activation"] = layout.SILU if form.activation == "silu" else layout.GELU_TANH
        record["embedding"] = self._embedding.data_ptr()
        record["embedding_kind"] = layout.EMBEDDING_KINDS.index(weights_name(self._embedding.dtype))
        return record

    def _layer_matrices(self, prefix: str) -> list[tuple[int, ...]]:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        form = self.form
        heads, key_heads = form.heads * form.head_size, form.key_heads * form.head_size
        qkv = {attention + "q_proj": heads, attention + "k_proj": key_heads, attention + "v_proj": key_heads}
        return [
            self._matrix(*self._joined(self._parts(qkv, attention + "qkv_proj"))),
            self._matrix(*self._linear(attention + "o_proj", form.hidden, heads)),
            self._paired(*self._parts({mlp + "gate_proj": form.inner, mlp + "up_proj": form.inner}, mlp + "gate_up_proj")),
            self._matrix(*self._linear(mlp + "down_proj", form.hidden, form.inner)),
        ]

    def _parts(self, parts: dict[str, int], whole: str) -> list[_Linear]:
        """Several linears that read the hidden state; some families store them one under another. parts: their outputs."""
        hidden, outputs = self.form.hidden, list(parts.values())
        if not self.form.fused:
            return [self._linear(part, count, hidden) for part, count in parts.items()]
        weight, bias = self._linear(whole, sum(outputs), hidden)
        biases = [None] * len(outputs) if bias is None else bias.split(outputs)
        return list(zip(weight.split(outputs), biases, strict=True))

    @staticmethod
    def _joined(linears: list[_Linear]) -> _Linear:
        """Linears one under another."""
        return torch.cat([weight for weight, _ in linears]), _biases(linears, torch.cat)

    def _linear(self, name: str, outputs: int, inputs: int) -> _Linear:
        bias = name + ".bias"
        return self._read(name + ".weight", outputs, inputs), self._read(bias, outputs) if self._has(bias) else None

    def _has(self, name: str) -> bool:
        """Whether the form gives its layers this bias or norm. What a checkpoint happens to hold does not decide it."""
        return name.split(".", 3)[-1] in self.form.extras

    def _read(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._tensors.find(name)
        if tensor is None or tensor.shape != shape:
            raise Unsuited(f"it has no tensor '{name}' of shape {shape}")
        return tensor

    def _matrix(self, weight: Rows, bias: torch.Tensor | None = None, paired: bool = False) -> tuple[int, ...]:
        try:
            packed: Packed = pack(weight, self._format, self._arena)
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

    def _paired(self, gate: _Linear, up: _Linear) -> tuple[int, ...]:
        bias = _biases([gate, up], lambda biases: Alternating(*biases)[:])
        return self._matrix(Alternating(gate[0], up[0]), bias, paired=True)

    def _layer_norms(self, prefix: str) -> list[tuple[Any, ...]]:
        names = dict(_NORMS)
        if not self._has(prefix + "pre_feedforward_layernorm.weight"):
            # the name means the norm before the MLP where there is only that one
            del names[layout.AFTER_ATTENTION], names[layout.AFTER_MLP]
            names[layout.BEFORE_MLP] = "post_attention_layernorm"
        if not self._has(prefix + "self_attn.q_norm.weight"):
            del names[layout.QUERY], names[layout.KEY]
        return [
            self._norm(prefix + names[place], self.form.head_size if place in (layout.QUERY, layout.KEY) else self.form.hidden)
            if place in names
            else _NO_NORM
            for place in range(layout.NORMS)
        ]

    def _norm(self, name: str, size: int) -> tuple[Any, ...]:
        weight = self._read(name + ".weight", size).float() + self.form.offset
        self._kept.append(weight)
        if self.form.norm == "rms":
            return (layout.RMS, weight.data_ptr(), 0, self.form.epsilon)
        bias = self._read(name + ".bias", size).float()
        self._kept.append(bias)
        return (layout.LAYER, weight.data_ptr(), bias.data_ptr(), self.form.epsilon)


def _biases(linears: list[_Linear], together: Callable[[list[torch.Tensor]], torch.Tensor]) -> torch.Tensor | None:
    """The biases of several linears as one, zeros where one has none; None where none has."""
    if all(bias is None for _, bias in linears):
        return None
    return together([torch.zeros(weight.shape[0]) if bias is None else bias for weight, bias in linears])
