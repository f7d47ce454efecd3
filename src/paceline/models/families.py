"""Families: how the layers of each model family differ from Llama's; a family is a row of FAMILIES.

Sources: the configurations and modelling files of transformers 5.23. A family is added only after its numbers were compared with
transformers' own (`CASES` of tests/models/test_native.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_OUT = ("self_attn.o_proj",)
_ATTENTION = (*_QKV, *_OUT)
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

ALWAYS = ""
"""In place of a configuration key: whatever the configuration says."""

NORM_PLACES = ("before_attention", "after_attention", "before_mlp", "after_mlp")
"""Where a layer may have norms, in the order in which they apply."""
_BEFORE = {"before_attention": "input_layernorm", "before_mlp": "post_attention_layernorm"}
_BEHIND = {"after_attention": "post_attention_layernorm", "after_mlp": "post_feedforward_layernorm"}
_AROUND = {**_BEHIND, "before_attention": "input_layernorm", "before_mlp": "pre_feedforward_layernorm"}
_AROUND_IN_GLM = {**_BEFORE, "after_attention": "post_self_attn_layernorm", "after_mlp": "post_mlp_layernorm"}

_ONLY_LAYERS = frozenset({"sliding_window", "layer_types"})
_GEMMA = _ONLY_LAYERS | {"hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping"}
_CAPPED = _GEMMA | {"attn_logit_softcapping"}
_MULTIPLIERS = frozenset({"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})


def _rotates_all(config: Any, layer: int) -> bool:
    return True


def _rotates_as_listed(config: Any, layer: int) -> bool:
    """Yang et al., "RoPE to NoPE and back again" (arXiv:2501.18795); a 0 in `no_rope_layers` is a layer without rotation."""
    return bool(config.no_rope_layers[layer])


def _rotates_in_windows(config: Any, layer: int) -> bool:
    """EXAONE 4.0 (arXiv:2507.11407): if some layers have windows, those with full attention do not rotate."""
    return config.sliding_window is None or config.layer_types[layer] == "sliding_attention"


@dataclass(frozen=True)
class ExpertNames:
    """count, inner: the configuration's keys for the number of experts in a layer, and for their size. always_whole: whether
    the weights of a row's experts are normalised to sum to one, whatever `norm_topk_prob` says. Others: names of tensors.
    """

    count: str = "num_experts"
    inner: str = "intermediate_size"
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    always_whole: bool = False


@dataclass(frozen=True)
class Family:
    """heeds: the configuration's keys that have a meaning in this family; others may be present, and are ignored.

    biases: key -> linears of a layer that have a bias if the key is true. norms: place (`NORM_PLACES`) -> name of a layer's norm.
    head_norms: whether each head of queries and keys is normalised. wide_norms: whether all heads are normalised together. fused:
    linears that are stored as one. interleaved: adjacent numbers of a head are rotated as pairs, not its halves. partly: a part
    of each head may be left unrotated. by_layer_type: rotations are given per layer type. rotates: (configuration, layer) ->
    whether the layer rotates. grows: whether queries are scaled by position (`query_growth`). offset: added to norm weights
    (Gemma stores them less one). centred: whether norms are LayerNorms. experts: their names, None for a dense MLP.
    """

    heeds: frozenset[str] = frozenset()
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norms: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(_BEFORE))
    head_norms: bool = False
    wide_norms: bool = False
    fused: frozenset[str] = frozenset()
    interleaved: bool = False
    partly: bool = False
    by_layer_type: bool = False
    rotates: Callable[[Any, int], bool] = _rotates_all
    grows: bool = False
    offset: float = 0.0
    centred: bool = False
    scales_embedding: bool = False
    experts: ExpertNames | None = None


_LLAMA_BIASES = {"attention_bias": _ATTENTION, "mlp_bias": _MLP}
_OLMO = Family(biases={"attention_bias": _ATTENTION}, norms=_BEHIND, wide_norms=True)
_MIXTRAL = ExpertNames(
    count="num_local_experts", router="block_sparse_moe.gate", experts="block_sparse_moe.experts", gate="w1", up="w3", down="w2",
    always_whole=True,
)  # fmt: skip
_GLM = Family(biases={"attention_bias": _QKV}, fused=frozenset({"gate_up_proj"}), interleaved=True, partly=True)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(biases=_LLAMA_BIASES),
        "cwm": Family(heeds=_ONLY_LAYERS, biases={"mlp_bias": _MLP}),
        "mistral": Family(heeds=frozenset({"sliding_window"})),
        "ministral": Family(heeds=_ONLY_LAYERS),
        "ministral3": Family(heeds=frozenset({"sliding_window"}), grows=True),
        "qwen2": Family(heeds=_ONLY_LAYERS, biases={ALWAYS: _QKV}),
        "qwen3": Family(heeds=_ONLY_LAYERS, biases={"attention_bias": _ATTENTION}, head_norms=True),
        "gemma": Family(biases={"attention_bias": _ATTENTION}, offset=1.0, scales_embedding=True),
        "gemma2": Family(
            heeds=_CAPPED, biases={"attention_bias": _ATTENTION}, norms=_AROUND, offset=1.0, scales_embedding=True
        ),
        "gemma3_text": Family(
            heeds=_GEMMA, biases={"attention_bias": _ATTENTION}, norms=_AROUND, head_norms=True, by_layer_type=True, offset=1.0,
            scales_embedding=True,
        ),
        "vaultgemma": Family(
            heeds=_CAPPED,
            biases={"attention_bias": _ATTENTION},
            norms={**_BEFORE, "before_mlp": "pre_feedforward_layernorm"},
            offset=1.0,
            scales_embedding=True,
        ),
        "phi3": Family(heeds=frozenset({"sliding_window"}), fused=frozenset({"qkv_proj", "gate_up_proj"}), partly=True),
        "stablelm": Family(biases={"use_qkv_bias": _QKV}, partly=True, centred=True),
        "smollm3": Family(heeds=_ONLY_LAYERS, biases=_LLAMA_BIASES, rotates=_rotates_as_listed),
        "granite": Family(heeds=_MULTIPLIERS, biases=_LLAMA_BIASES),
        "mixtral": Family(heeds=frozenset({"sliding_window"}), experts=_MIXTRAL),
        "qwen3_moe": Family(
            heeds=frozenset({"sliding_window"}),
            biases={"attention_bias": _ATTENTION},
            head_norms=True,
            experts=ExpertNames(inner="moe_intermediate_size"),
        ),
        "olmoe": Family(biases={"attention_bias": _ATTENTION}, wide_norms=True, experts=ExpertNames()),
        "olmo2": _OLMO,
        "olmo3": replace(_OLMO, heeds=_ONLY_LAYERS, by_layer_type=True),
        "exaone4": Family(heeds=_ONLY_LAYERS, norms=_BEHIND, head_norms=True, rotates=_rotates_in_windows),
        "glm": _GLM,
        "glm4": replace(_GLM, norms=_AROUND_IN_GLM),
        "ernie4_5": Family(biases={"use_bias": (*_ATTENTION, *_MLP)}, interleaved=True),
        "helium": Family(biases={"attention_bias": _QKV, "mlp_bias": _MLP}, interleaved=True),
        "seed_oss": Family(biases={"attention_bias": _QKV, "attention_out_bias": _OUT, "mlp_bias": _MLP}),
    }
)  # fmt: skip
