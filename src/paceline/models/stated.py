"""Stated: a checkpoint's configuration, read without transformers if it leaves nothing to defaults.

transformers' own configurations import torch's compiler: a second and a half, and 100 MB, before anything is computed. If
config.json states everything that a Llama-form model needs, in keys known here, its values are used directly. Any other file,
with a key more or less, is read by transformers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

_COUNTS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
_COMMON = frozenset({*_COUNTS, "model_type", "hidden_act", "rms_norm_eps", "tie_word_embeddings"})
_NEEDED = {
    "llama": frozenset({"attention_bias", "mlp_bias"}),
    "mistral": frozenset({"sliding_window"}),
    "qwen2": frozenset({"use_sliding_window"}),
    "qwen3": frozenset({"use_sliding_window", "attention_bias", "head_dim"}),
}
"""Family -> keys its files must contain besides `_COMMON`, because a default would apply otherwise."""
_READ = frozenset(
    {"head_dim", "rope_parameters", "rope_theta", "rope_scaling", "layer_types", "sliding_window", "max_window_layers"}
)
_WITHOUT_EFFECT = frozenset({
    "architectures", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "name_or_path",
    "pad_token_id", "pretraining_tp", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip
"""Keys that do not change what a forward pass computes."""


class StatedConfig(SimpleNamespace):
    """The part of a configuration that the native backend needs, under transformers' names."""

    def get_text_config(self) -> StatedConfig:
        return self


def stated(config: dict[str, Any]) -> StatedConfig | None:
    """The configuration; None if transformers must read it, or report what is wrong. config: the object in config.json."""
    needed = _NEEDED.get(config.get("model_type", ""))
    if needed is None or not config.keys() >= _COMMON | needed:
        return None
    if config.keys() - _COMMON - needed - _READ - _WITHOUT_EFFECT:
        return None
    rotation = _rotation(config)
    kinds = config.get("layer_types")
    counts = [config[name] for name in _COUNTS] + ([config["head_dim"]] if config.get("head_dim") is not None else [])
    flags = [config[name] for name in ("attention_bias", "mlp_bias", "tie_word_embeddings") if name in config]
    sound = (
        rotation is not None
        and all(type(count) is int and count > 0 for count in counts)
        and all(type(flag) is bool for flag in flags)
        and isinstance(config["rms_norm_eps"], float)
        and isinstance(config["hidden_act"], str)
        and config["hidden_size"] % config["num_attention_heads"] == 0
        and not config.get("use_sliding_window")
        # a window that is stated but not used is dropped by transformers
        and (config.get("sliding_window") is None or config.get("use_sliding_window") is False)
        and (kinds is None or (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)))
    )
    if not sound:
        return None
    kept = {
        name: value
        for name, value in config.items()
        if name not in ("rope_theta", "rope_scaling", "sliding_window", "layer_types")
    }
    return StatedConfig(**kept | {"rope_parameters": rotation, "sliding_window": None, "layer_types": None})


def _rotation(config: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters of a plain rotation, or None if it is any other."""
    parameters = config.get("rope_parameters")
    if config.get("rope_scaling"):
        # transformers gives it precedence
        return None
    if parameters is None and "rope_theta" in config:
        parameters = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    if (
        not isinstance(parameters, dict)
        or parameters.keys() != {"rope_type", "rope_theta"}
        or parameters["rope_type"] != "default"
    ):
        return None
    theta = parameters["rope_theta"]
    sound = type(theta) in (int, float) and 0 < theta < _LARGEST_THETA
    return {"rope_type": "default", "rope_theta": float(theta)} if sound else None


_LARGEST_THETA = 1e30
"""A rotation base larger than any in use."""
