"""Forms: what a Llama-form checkpoint computes, read from its configuration.

A configuration that asks for more than its family's entry in `families.py` covers is refused with a reason, and the transformers
backend takes the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.models.families import ALWAYS, FAMILIES, ExpertNames, Family
from paceline.models.rotation import STILL, QueryGrowth

_MOST_EXPERTS = 4096
"""Most experts per layer; each has its own matrices here."""
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


class Unsuited(Exception):
    """A native or fused backend cannot run this model; the message says why, for developers and for users of `--weights int8`."""


@dataclass(frozen=True)
class LayerForm:
    """window: keys a row sees, itself included; 0 for all. rotary: the layer type whose rotation table applies, "" if all layers
    share one, STILL if the layer does not rotate."""

    window: int
    rotary: str


@dataclass(frozen=True)
class Experts:
    """Experts of each layer's MLP. count: how many there are, of which each row uses the `chosen` likeliest. whole_weights:
    whether the weights of the chosen ones are normalised to sum to one."""

    count: int
    chosen: int
    whole_weights: bool
    names: ExpertNames


@dataclass(frozen=True)
class Form:
    """The numbers of a model.

    biased: the linears of a layer that have a bias. residual_scale: the residual stream holds hidden states divided by it, so
    that a block's output is added unscaled; norms with a matching epsilon are unaffected. score_scale: factor of query times key.
    Caps are 0 if there are none. query_growth: position-dependent factors of queries, or None.
    """

    family: Family
    hidden: int
    heads: int
    key_heads: int
    head_size: int
    rotary: int
    inner: int
    vocabulary: int
    layers: tuple[LayerForm, ...]
    biased: frozenset[str]
    activation: str
    epsilon: float
    tied: bool
    score_scale: float
    score_cap: float
    query_growth: QueryGrowth | None
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    logit_cap: float
    experts: Experts | None

    @property
    def rotations(self) -> set[str]:
        """The layer types that have rotation tables of their own."""
        return {layer.rotary for layer in self.layers}


def form_of(config: Any) -> Form:
    """config: transformers' own configuration of a causal LM. Raises Unsuited."""
    kind = config.model_type
    if kind not in FAMILIES:
        raise Unsuited(f"the architecture '{kind}' is not of the Llama form")
    family = FAMILIES[kind]
    if getattr(config, "is_heterogeneous", False):
        raise Unsuited("it has a per_layer_config")
    named = _said(config, family, "hidden_activation") or config.hidden_act
    if named not in _ACTIVATIONS:
        raise Unsuited(f"its activation is '{named}'")
    for flag in ("use_parallel_residual", "qk_layernorm", "use_bidirectional_attention"):
        if getattr(config, flag, None):
            raise Unsuited(f"it sets {flag}")
    if not getattr(config, "is_causal", True):
        raise Unsuited("it attends in both directions")
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    inner = getattr(config, family.experts.inner if family.experts else "intermediate_size")
    if min(config.hidden_size, heads, key_heads, size, inner, config.vocab_size) < 1:
        raise Unsuited("one of its sizes is less than 1")
    if heads % key_heads:
        raise Unsuited("its heads do not share their keys evenly")
    residual = _positive(config, family, "residual_multiplier") or 1.0
    scaled_up = config.hidden_size**0.5 if family.scales_embedding else _positive(config, family, "embedding_multiplier") or 1.0
    score_scale = _positive(config, family, "attention_multiplier")
    if score_scale is None:
        score_scale = (_positive(config, family, "query_pre_attn_scalar") or size) ** -0.5
    return Form(
        family=family,
        hidden=config.hidden_size,
        heads=heads,
        key_heads=key_heads,
        head_size=size,
        rotary=_rotary(config, family, size),
        inner=inner,
        vocabulary=config.vocab_size,
        layers=_layers(config, family),
        biased=frozenset(
            linear for word, linears in family.biases.items() for linear in linears if word == ALWAYS or getattr(config, word)
        ),
        activation=_ACTIVATIONS[named],
        epsilon=(config.layer_norm_eps if family.centred else config.rms_norm_eps) / residual**2,
        tied=bool(config.tie_word_embeddings),
        score_scale=score_scale,
        score_cap=_positive(config, family, "attn_logit_softcapping") or 0.0,
        query_growth=_query_growth(config) if family.grows else None,
        embedding_scale=scaled_up / residual,
        residual_scale=residual,
        logit_scale=1 / (_positive(config, family, "logits_scaling") or 1.0),
        logit_cap=_positive(config, family, "final_logit_softcapping") or 0.0,
        experts=_experts(config, family.experts) if family.experts else None,
    )


def _experts(config: Any, names: ExpertNames) -> Experts:
    if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) != 1:
        raise Unsuited("some of its layers have no experts")
    if getattr(config, "clip_qkv", None) is not None:
        raise Unsuited("it clips queries, keys and values")
    count, chosen = getattr(config, names.count), config.num_experts_per_tok
    if not 1 <= chosen <= count <= _MOST_EXPERTS:
        raise Unsuited(f"each token takes {chosen} of {count} experts")
    return Experts(count, chosen, names.always_whole or bool(config.norm_topk_prob), names)


def _said(config: Any, family: Family, name: str) -> Any:
    """The configuration's value of a key that the family heeds, else None."""
    return getattr(config, name, None) if name in family.heeds else None


def _positive(config: Any, family: Family, name: str) -> float | None:
    """As `_said`, for a number. Raises Unsuited if it is not above 0, as no multiplier, cap or window can be."""
    said = _said(config, family, name)
    if said is None:
        return None
    if not said > 0:
        raise Unsuited(f"its {name} is {said}")
    return float(said)


def _query_growth(config: Any) -> QueryGrowth:
    stated = config.rope_parameters
    return QueryGrowth(float(stated["llama_4_scaling_beta"]), int(stated["original_max_position_embeddings"]))


def _rotary(config: Any, family: Family, size: int) -> int:
    """How many numbers of a head are rotated. Raises Unsuited if the number is odd, exceeds the head or differs between layers,
    and if the rotation changes with the length of the text.
    """
    parameters = config.rope_parameters
    # decided by family: transformers adds per-layer parameters to those that a file states, and then reads only these
    by_layer = family.by_layer_type
    if not by_layer and "rope_type" not in parameters:
        raise Unsuited("it rotates by the type of a layer, which its family does not")
    kinds = [one for one in parameters.values() if isinstance(one, dict)] if by_layer else [parameters]
    for one in kinds:
        # a longrope changes only where the context ends here (`context.context_length`), if it states that length
        changes = one["rope_type"] in ("dynamic", "proportional")
        if changes or (one["rope_type"] == "longrope" and original_length(config, one) is None):
            raise Unsuited(f"its rotation is '{one['rope_type']}', which changes with the length of the text")
    fractions = {one.get("partial_rotary_factor", 1.0) for one in kinds}
    if fractions != {1.0} and not family.partly:
        raise Unsuited("it rotates a part of each head, which its family does not")
    counts = {int(size * fraction) for fraction in fractions}
    if len(counts) > 1:
        raise Unsuited("it rotates another part of each head in some layers than in others")
    (rotary,) = counts
    if not 0 < rotary <= size or rotary % 2:
        raise Unsuited(f"it rotates {rotary} of the {size} numbers of a head")
    return rotary


def original_length(config: Any, rotation: dict[str, Any]) -> int | None:
    """The context length before a rotation was stretched, as its parameters or else the configuration state it; None if neither
    does."""
    name = "original_max_position_embeddings"
    stated = rotation.get(name, getattr(config, name, None))
    return int(stated) if isinstance(stated, int | float) and stated >= 1 else None


def _layers(config: Any, family: Family) -> tuple[LayerForm, ...]:
    window = int(_positive(config, family, "sliding_window") or 0)
    kinds = _said(config, family, "layer_types")
    forms = []
    for layer in range(config.num_hidden_layers):
        kind = kinds[layer] if kinds else "sliding_attention"
        if kind not in ("full_attention", "sliding_attention"):
            raise Unsuited(f"it has layers of '{kind}'")
        if kinds and kind == "sliding_attention" and not window:
            raise Unsuited("some of its layers look back through a window, and it does not say how wide that is")
        rotary = kind if family.by_layer_type else ""
        forms.append(LayerForm(window if kind == "sliding_attention" else 0, rotary if family.rotates(config, layer) else STILL))
    return tuple(forms)
