"""LlamaTensors: the matrices and norms of a Llama-form checkpoint by what they are for, whatever a family calls or how it stores
them; each is read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch

from paceline.models.forms import Form, Unsuited
from paceline.models.tensors import Tensors

Linear = tuple[torch.Tensor, torch.Tensor | None]
"""Weight [outputs, inputs] and bias."""
Weighted = tuple[torch.Tensor, torch.Tensor | None]
"""A norm's weight and, of a LayerNorm, its bias; float32."""
_KINDS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_IGNORED = "rotary_emb.inv_freq"


@dataclass(frozen=True)
class LayerNorms:
    """Those that a layer has, in the order in which rows meet them but for those of heads."""

    before_attention: Weighted | None
    after_attention: Weighted | None
    before_mlp: Weighted | None
    after_mlp: Weighted | None
    query: Weighted | None
    key: Weighted | None

    def in_order(self) -> list[Weighted | None]:
        return [getattr(self, field.name) for field in fields(self)]


class LlamaTensors:
    """Raises Unsuited where a tensor is missing, is of another type than a float, or is there without a meaning known here.

    matrix_kind: the precision of the matrices; float32 where there are several, for what is stored so is in none of the halves.
    """

    def __init__(self, form: Form, tensors: Tensors) -> None:
        self._form, self._tensors = form, tensors
        # a rotation's frequencies are computed anew, whatever some files hold of them
        kinds = {kind for name, kind in tensors.kinds.items() if not name.endswith(_IGNORED)}
        if not kinds <= _KINDS.keys():
            raise Unsuited(f"it holds tensors of the type {min(kinds - _KINDS.keys())}")
        matrices = {kind for name, kind in tensors.kinds.items() if name.endswith(".weight") and "norm" not in name}
        self.matrix_kind = _KINDS[matrices.pop()] if len(matrices) == 1 else "fp32"
        # of two names for the same tensor, safetensors' `save_model` keeps the first in the alphabet
        only_head = form.tied and _HEAD in tensors.kinds and _EMBEDDING not in tensors.kinds
        self.embedding = self._read(_HEAD if only_head else _EMBEDDING, form.vocabulary, form.hidden)

    def query_key_value(self, layer: int) -> list[Linear]:
        form, prefix = self._form, f"model.layers.{layer}.self_attn."
        heads, key_heads = form.heads * form.head_size, form.key_heads * form.head_size
        parts = {prefix + "q_proj": heads, prefix + "k_proj": key_heads, prefix + "v_proj": key_heads}
        linears = self._parts(parts, prefix, "qkv_proj")
        if form.family.interleaved:
            halves = self._in_halves
            linears[:2] = [(halves(weight), None if bias is None else halves(bias)) for weight, bias in linears[:2]]
        return linears

    def out(self, layer: int) -> Linear:
        return self._linear(f"model.layers.{layer}.self_attn.o_proj", self._form.hidden, self._form.heads * self._form.head_size)

    def gate_up(self, layer: int) -> list[Linear]:
        prefix = f"model.layers.{layer}.mlp."
        return self._parts(dict.fromkeys((prefix + "gate_proj", prefix + "up_proj"), self._form.inner), prefix, "gate_up_proj")

    def down(self, layer: int) -> Linear:
        return self._linear(f"model.layers.{layer}.mlp.down_proj", self._form.hidden, self._form.inner)

    def router(self, layer: int) -> torch.Tensor:
        """[experts, hidden]."""
        form = self._form
        assert form.experts is not None
        return self._read(f"model.layers.{layer}.{form.experts.names.router}.weight", form.experts.count, form.hidden)

    def expert(self, layer: int, expert: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gates [inner, hidden] of one expert, what they gate, and the way back [hidden, inner]."""
        form = self._form
        assert form.experts is not None
        names, shape = form.experts.names, (form.inner, form.hidden)
        prefix = f"model.layers.{layer}.{names.experts}.{expert}."
        gate, up, down = (f"{prefix}{name}.weight" for name in (names.gate, names.up, names.down))
        return self._read(gate, *shape), self._read(up, *shape), self._read(down, *shape[::-1])

    def norms(self, layer: int) -> LayerNorms:
        form, family, prefix = self._form, self._form.family, f"model.layers.{layer}."
        norms = {field.name: None for field in fields(LayerNorms)} | {
            place: self._norm(prefix + name, form.hidden) for place, name in family.norms.items()
        }
        if family.head_norms or family.wide_norms:
            query, key = (1, 1) if family.head_norms else (form.heads, form.key_heads)
            norms["query"] = self._norm(prefix + "self_attn.q_norm", query * form.head_size)
            norms["key"] = self._norm(prefix + "self_attn.k_norm", key * form.head_size)
        return LayerNorms(**norms)

    def last_norm(self) -> Weighted:
        """What multiplies logits is put into its weights, which are float32 in every format."""
        weight, bias = self._norm("model.norm", self._form.hidden)
        return weight * self._form.logit_scale, None if bias is None else bias * self._form.logit_scale

    def head(self) -> Linear:
        """Its weight is `embedding` itself where it is tied."""
        form = self._form
        if not form.tied:
            return self._linear("lm_head", form.vocabulary, form.hidden)
        if has_head_of_its_own(self._tensors):
            # transformers ties them only where they are alike, whatever the configuration says
            head = self._read(_HEAD, form.vocabulary, form.hidden)
            if not torch.equal(head.to(self.embedding.dtype), self.embedding):
                return head, None
        return self.embedding, None

    def all_read(self) -> None:
        """Raises Unsuited where something was never asked for."""
        left = sorted(name for name in self._tensors.unread if not name.endswith(_IGNORED))
        if left:
            raise Unsuited(f"its tensor '{left[0]}' has no place in the Llama form")

    def _in_halves(self, rows: torch.Tensor) -> torch.Tensor:
        """Outputs of heads in an order in which halves are rotated together where neighbours were. Scores do not see an order
        that queries and keys share."""
        form = self._form
        heads = rows.unflatten(0, (-1, form.head_size))
        turned = heads[:, : form.rotary]
        return torch.cat([turned[:, ::2], turned[:, 1::2], heads[:, form.rotary :]], dim=1).flatten(0, 1)

    def _parts(self, parts: dict[str, int], prefix: str, whole: str) -> list[Linear]:
        """Several linears that read the hidden state; some families store them one under another. parts: their outputs."""
        hidden, outputs = self._form.hidden, list(parts.values())
        if whole not in self._form.family.fused:
            return [self._linear(part, count, hidden) for part, count in parts.items()]
        weight, bias = self._linear(prefix + whole, sum(outputs), hidden)
        biases = [None] * len(outputs) if bias is None else bias.split(outputs)
        return list(zip(weight.split(outputs), biases, strict=True))

    def _linear(self, name: str, outputs: int, inputs: int) -> Linear:
        """Whether it has a bias the form decides, and not what a checkpoint happens to hold."""
        biased = name.split(".", 3)[-1] in self._form.biased
        return self._read(name + ".weight", outputs, inputs), self._read(name + ".bias", outputs) if biased else None

    def _norm(self, name: str, size: int) -> Weighted:
        weight = self._read(name + ".weight", size).float() + self._form.family.offset
        return weight, self._read(name + ".bias", size).float() if self._form.family.centred else None

    def _read(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._tensors.find(name)
        if tensor is None or tensor.shape != shape:
            raise Unsuited(f"it has no tensor '{name}' of shape {shape}")
        return tensor


def has_head_of_its_own(tensors: Tensors) -> bool:
    """Whether there is a head beside the embedding, and not in its place."""
    return {_EMBEDDING, _HEAD} <= tensors.kinds.keys()


def joined(linears: list[Linear], together: Callable[[list[torch.Tensor]], torch.Tensor] = torch.cat) -> Linear:
    """Linears as one; one under another, or however `together` puts weights and biases."""
    return together([weight for weight, _ in linears]), biases(linears, together)


def biases(linears: list[Linear], together: Callable[[list[torch.Tensor]], torch.Tensor]) -> torch.Tensor | None:
    """The biases of several linears as one, zeros where one has none; None where none has."""
    if all(bias is None for _, bias in linears):
        return None
    return together([torch.zeros(weight.shape[0]) if bias is None else bias for weight, bias in linears])
