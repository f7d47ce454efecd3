"""LlamaTensors: the matrices and norms of a Llama-form checkpoint by their role, whatever names and layouts a family uses; each
is read on demand."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.models.families import NORM_PLACES
from paceline.models.forms import Form, Unsuited
from paceline.models.tensors import Tensors

Linear = tuple[torch.Tensor, torch.Tensor | None]
"""Weight [outputs, inputs] and bias."""
Weighted = tuple[torch.Tensor, torch.Tensor | None]
"""A norm's weight and, of a LayerNorm, its bias; float32."""
_KINDS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_IGNORED = "rotary_emb.inv_freq"


class LlamaTensors:
    """Raises Unsuited if a tensor is missing, is not of a float type, or is not part of the form.

    matrix_kind: the precision of the matrices; float32 if they differ, since neither half-precision format holds the others.
    """

    def __init__(self, form: Form, tensors: Tensors) -> None:
        self._form, self._tensors = form, tensors
        # rotation frequencies are computed, even if a file holds them
        kinds = {kind for name, kind in tensors.kinds.items() if not name.endswith(_IGNORED)}
        if not kinds <= _KINDS.keys():
            raise Unsuited(f"it holds tensors of the type {min(kinds - _KINDS.keys())}")
        matrices = {kind for name, kind in tensors.kinds.items() if name.endswith(".weight") and "norm" not in name}
        self.matrix_kind = _KINDS[matrices.pop()] if len(matrices) == 1 else "fp32"
        # of tied tensors, safetensors' `save_model` keeps the alphabetically first name
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
        """One expert's gate and up matrices, [inner, hidden], and its down matrix, [hidden, inner]."""
        form = self._form
        assert form.experts is not None
        names, shape = form.experts.names, (form.inner, form.hidden)
        prefix = f"model.layers.{layer}.{names.experts}.{expert}."
        gate, up, down = (f"{prefix}{name}.weight" for name in (names.gate, names.up, names.down))
        return self._read(gate, *shape), self._read(up, *shape), self._read(down, *shape[::-1])

    def norms(self, layer: int) -> list[Weighted | None]:
        """A layer's norms at `NORM_PLACES`, then those of query and key heads; None for each that it lacks."""
        form, family, prefix = self._form, self._form.family, f"model.layers.{layer}."
        names = [family.norms.get(place) for place in NORM_PLACES]
        found = [None if name is None else self._norm(prefix + name, form.hidden) for name in names]
        if not (family.head_norms or family.wide_norms):
            return [*found, None, None]
        counts = (1, 1) if family.head_norms else (form.heads, form.key_heads)
        own = zip(("q_norm", "k_norm"), counts, strict=True)
        return [*found, *(self._norm(f"{prefix}self_attn.{name}", count * form.head_size) for name, count in own)]

    def last_norm(self) -> Weighted:
        """The final norm; `logit_scale` is folded into its weights, which are float32 in every format."""
        weight, bias = self._norm("model.norm", self._form.hidden)
        return weight * self._form.logit_scale, None if bias is None else bias * self._form.logit_scale

    def head(self) -> Linear:
        """The output head; if tied, its weight is `embedding` itself."""
        form = self._form
        if not form.tied:
            return self._linear("lm_head", form.vocabulary, form.hidden)
        if has_head_of_its_own(self._tensors):
            # transformers ties them only if they are equal, whatever the configuration states
            head = self._read(_HEAD, form.vocabulary, form.hidden)
            if not torch.equal(head.to(self.embedding.dtype), self.embedding):
                return head, None
        return self.embedding, None

    def all_read(self) -> None:
        """Raises Unsuited if any tensor was never read."""
        left = sorted(name for name in self._tensors.unread if not name.endswith(_IGNORED))
        if left:
            raise Unsuited(f"its tensor '{left[0]}' has no place in the Llama form")

    def _in_halves(self, rows: torch.Tensor) -> torch.Tensor:
        """Reorder the outputs of heads from rotating adjacent pairs to rotating halves. Scores do not depend on an order that
        queries and keys share."""
        form = self._form
        heads = rows.unflatten(0, (-1, form.head_size))
        turned = heads[:, : form.rotary]
        return torch.cat([turned[:, ::2], turned[:, 1::2], heads[:, form.rotary :]], dim=1).flatten(0, 1)

    def _parts(self, parts: dict[str, int], prefix: str, whole: str) -> list[Linear]:
        """Several linears that read the hidden state; some families store them stacked as one. parts: name -> outputs."""
        hidden, outputs = self._form.hidden, list(parts.values())
        if whole not in self._form.family.fused:
            return [self._linear(part, count, hidden) for part, count in parts.items()]
        weight, bias = self._linear(prefix + whole, sum(outputs), hidden)
        biases = [None] * len(outputs) if bias is None else bias.split(outputs)
        return list(zip(weight.split(outputs), biases, strict=True))

    def _linear(self, name: str, outputs: int, inputs: int) -> Linear:
        """Weight and bias; the form, not the checkpoint's tensors, decides whether there is a bias."""
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
    """Whether there is a head besides the embedding, not instead of it."""
    return {_EMBEDDING, _HEAD} <= tensors.kinds.keys()


def joined(linears: list[Linear], together: Callable[[list[torch.Tensor]], torch.Tensor] = torch.cat) -> Linear:
    """Several linears as one: stacked, or combined by `together`, weights and biases alike."""
    return together([weight for weight, _ in linears]), biases(linears, together)


def biases(linears: list[Linear], together: Callable[[list[torch.Tensor]], torch.Tensor]) -> torch.Tensor | None:
    """The combined biases of several linears, zeros for a linear without one; None if none has one."""
    if all(bias is None for _, bias in linears):
        return None
    return together([torch.zeros(weight.shape[0]) if bias is None else bias for weight, bias in linears])
