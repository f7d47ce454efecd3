"""Forms: what a Llama-form checkpoint computes, read from its configuration; the families that the native road knows.

A family is known when its numbers were compared with transformers' own (tests/models/test_native.py). Whatever else a
configuration asks for is refused with a reason, and the transformers road takes the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "stablelm"})

_PARTLY_ROTATED = frozenset({"phi3", "stablelm"})
_ROTATED_BY_LAYER = frozenset({"gemma3_text"})
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


_BY_LAYER = frozenset({"qwen2", "qwen3", "gemma2", "gemma3_text"})
_READ = {
    "sliding_window": _BY_LAYER | {"mistral", "phi3"},
    "layer_types": _BY_LAYER,
    "hidden_activation": frozenset({"gemma2", "gemma3_text"}),
    "query_pre_attn_scalar": frozenset({"gemma2", "gemma3_text"}),
    "attn_logit_softcapping": frozenset({"gemma2"}),
    "final_logit_softcapping": frozenset({"gemma2", "gemma3_text"}),
}
"""Which families heed what a config.json may say of any model. Source: the modelling files of transformers 5.23."""


class Unsuited(Exception):
    """The native road cannot run this model; the message says why, for the developer and for `--weights int8`."""


@dataclass(frozen=True)
class LayerForm:
    """window: keys a row sees, itself included; 0 for all. rotary: the layer type whose rotation table applies, or ""."""

    window: int
    rotary: str


@dataclass(frozen=True)
class Form:
    """The numbers of a model.

    extras: the biases and norms that its layers have beyond those of every family, by their names within a layer; what else a
    checkpoint holds is not part of the model. fused: whether linears that read the same are stored as one. offset: added to norm
    weights (Gemma stores them less one). score_scale: of query times key. Caps are 0 where there are none.
    """

    hidden: int
    heads: int
    key_heads: int
    head_size: int
    rotary: int
    inner: int
    vocabulary: int
    layers: tuple[LayerForm, ...]
    extras: frozenset[str]
    fused: bool
    activation: str
    norm: str
    epsilon: float
    offset: float
    tied: bool
    score_scale: float
    score_cap: float
    embedding_scale: float
    logit_cap: float

    @property
    def rotations(self) -> set[str]:
        """The layer types that have rotation tables of their own."""
        return {layer.rotary for layer in self.layers}


def form_of(config: Any) -> Form:
    """config: transformers' own configuration of a causal LM. Raises Unsuited."""
    kind = config.model_type
    if kind not in FAMILIES:
        raise Unsuited(f"the architecture '{kind}' is not of the Llama form")
    if getattr(config, "is_heterogeneous", False):
        raise Unsuited("it has a per_layer_config")
    named = _said(config, "hidden_activation") or config.hidden_act
    if named not in _ACTIVATIONS:
        raise Unsuited(f"its activation is '{named}'")
    for flag in ("use_parallel_residual", "qk_layernorm", "use_bidirectional_attention"):
        if getattr(config, flag, None):
            raise Unsuited(f"it sets {flag}")
    if not getattr(config, "is_causal", True):
        raise Unsuited("it attends in both directions")
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    if min(config.hidden_size, heads, key_heads, size, config.intermediate_size, config.vocab_size) < 1:
        raise Unsuited("one of its sizes is less than 1")
    if heads % key_heads:
        raise Unsuited("its heads do not share their keys evenly")
    gemma = kind.startswith("gemma")
    return Form(
        hidden=config.hidden_size,
        heads=heads,
        key_heads=key_heads,
        head_size=size,
        rotary=_rotary(config, size),
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        layers=_layers(config),
        extras=_extras(config),
        fused=kind == "phi3",
        activation=_ACTIVATIONS[named],
        norm="layer" if kind == "stablelm" else "rms",
        epsilon=config.layer_norm_eps if kind == "stablelm" else config.rms_norm_eps,
        offset=1.0 if gemma else 0.0,
        tied=bool(config.tie_word_embeddings),
        score_scale=float(_said(config, "query_pre_attn_scalar") or size) ** -0.5,
        score_cap=float(_said(config, "attn_logit_softcapping") or 0.0),
        embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
        logit_cap=float(_said(config, "final_logit_softcapping") or 0.0),
    )


def _said(config: Any, name: str) -> Any:
    """What a configuration says where the family heeds it, else None."""
    return getattr(config, name, None) if config.model_type in _READ[name] else None


def _extras(config: Any) -> frozenset[str]:
    """Names without `model.layers.N.`. A flag counts only in the families that read it."""
    kind = config.model_type
    biased = kind in ("llama", "qwen3", "gemma", "gemma2", "gemma3_text") and config.attention_bias
    linears: list[str] = []
    if biased or kind == "qwen2" or (kind == "stablelm" and config.use_qkv_bias):
        linears += ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    if biased:
        linears += ["self_attn.o_proj"]
    if kind == "llama" and config.mlp_bias:
        linears += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    norms: list[str] = []
    if kind in ("qwen3", "gemma3_text"):
        norms += ["self_attn.q_norm", "self_attn.k_norm"]
    if kind in ("gemma2", "gemma3_text"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    return frozenset([name + ".bias" for name in linears] + [name + ".weight" for name in norms])


def _rotary(config: Any, size: int) -> int:
    """Numbers of a head that are rotated; the rest stays. Raises Unsuited where they are no pairs within a head, or not as many
    in every layer, and where the rotation changes with the length.
    """
    parameters = config.rope_parameters
    # by family: transformers puts those by layer beside others that a file states, and reads them alone
    by_layer = config.model_type in _ROTATED_BY_LAYER
    if not by_layer and "rope_type" not in parameters:
        raise Unsuited("it rotates by the type of a layer, which its family does not")
    kinds = [one for one in parameters.values() if isinstance(one, dict)] if by_layer else [parameters]
    for one in kinds:
        # a longrope changes where the context ends here (`load.context_length`), if it says where that is
        changes = one["rope_type"] in ("dynamic", "proportional")
        if changes or (one["rope_type"] == "longrope" and original_length(config, one) is None):
            raise Unsuited(f"its rotation is '{one['rope_type']}', which changes with the length of the text")
    fractions = {one.get("partial_rotary_factor", 1.0) for one in kinds}
    if fractions != {1.0} and config.model_type not in _PARTLY_ROTATED:
        raise Unsuited("it rotates a part of each head, which its family does not")
    counts = {int(size * fraction) for fraction in fractions}
    if len(counts) > 1:
        raise Unsuited("it rotates another part of each head in some layers than in others")
    (rotary,) = counts
    if not 0 < rotary <= size or rotary % 2:
        raise Unsuited(f"it rotates {rotary} of the {size} numbers of a head")
    return rotary


def original_length(config: Any, rotation: dict[str, Any]) -> int | None:
    """The tokens that a rotation was not stretched for, as it or else the configuration states it; None for neither."""
    name = "original_max_position_embeddings"
    stated = rotation.get(name, getattr(config, name, None))
    return int(stated) if isinstance(stated, int | float) and stated >= 1 else None


def _layers(config: Any) -> tuple[LayerForm, ...]:
    window = _said(config, "sliding_window") or 0
    kinds = _said(config, "layer_types")
    if not kinds:
        return (LayerForm(window, ""),) * config.num_hidden_layers
    by_layer = config.model_type in _ROTATED_BY_LAYER
    forms = []
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise Unsuited(f"it has layers of '{kind}'")
        forms.append(LayerForm(window if kind == "sliding_attention" else 0, kind if by_layer else ""))
    return tuple(forms)
