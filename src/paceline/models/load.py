"""Load: from a name to a model that has passed its checks, or one sentence that says why not."""

from __future__ import annotations

import re
from logging import getLogger
from pathlib import Path
from typing import Any

import torch

from paceline.kernels.device import served
from paceline.machine import expanded
from paceline.models.base import DTYPES, LanguageModel, ModelError
from paceline.models.checkpoint import Checkpoint, inspected
from paceline.models.context import context_length
from paceline.models.embedded import DEFAULT, embedded_path
from paceline.models.forms import Unsuited, form_of
from paceline.models.llama_tensors import has_head_of_its_own
from paceline.models.native import native_model, runs_here
from paceline.models.quiet import quiet, sentence
from paceline.models.stated import StatedConfig, stated
from paceline.models.tensors import Tensors
from paceline.models.towers import SEEING, text_config
from paceline.torch_threads import usable

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_TWICE = ["*/*", "consolidated*"]
"""Files that repeat a checkpoint in another format, such as Mistral's own."""
_HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
_NOT_ARCHITECTURE = {
    "auto_map",
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
    *("output_attentions", "output_hidden_states", "return_dict", "torchscript", "use_cache"),
    "transformers_weights",
}
"""Entries of config.json that a checkpoint must not decide: code to fetch and run, how a forward pass is called, and which file,
maybe a pickle, holds the weights."""
_FP8_FROM = (8, 9)
"""The lowest compute capability on which Triton supports fp8."""
_SUPERSEDED_ROTATIONS = {"su": "longrope"}
"""Former names of rotations, in early files of Phi-3 128k -> current names."""
_WHOLE = {"I8", "U8", "I16", "U16", "I32", "U32"}


def resolve(name: str) -> Path:
    """The folder of a model, given a directory, an embedded name or a Hub id, which is fetched (safetensors and text files only).

    Raises ModelError if there is no such model.
    """
    try:
        path = expanded(name)
        if name and path.is_dir():
            return path.resolve()
    # an unknown user's home (~name), or a name too long for a file
    except OSError as error:
        raise ModelError(f"there is no model directory '{name[:80]}'") from error
    embedded = embedded_path(name)
    if embedded is not None:
        return embedded
    if name == DEFAULT:
        raise ModelError(f"the embedded model '{name}' is not part of this installation: name a directory or a Hub id")
    if path.is_file():
        raise ModelError(f"'{name}' is a file: a model is the directory that holds config.json and the safetensors files")
    if not _HUB_ID.fullmatch(name):
        raise ModelError(f"there is no model directory '{name}'")
    return _fetched(name)


def _fetched(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        with quiet():
            folder = Path(snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=_TWICE))
    # the Hub's client raises its own errors, its transport's and the system's
    except Exception as error:
        raise ModelError(
            f"'{name}' is neither a directory nor an embedded model, and the Hub did not give it: {sentence(error)}"
        ) from error
    if not any(folder.glob("*.safetensors")):
        # pickles are not downloaded, so the message cannot name them
        raise ModelError(f"the Hub gave no safetensors of '{name}', and Paceline reads nothing else")
    return folder


def load_model(
    path: str | Path, *, weights: str | None = None, kv_cache: str | None = None, native: bool = True
) -> LanguageModel:
    """Load a checkpoint folder (or anything that `resolve` accepts) on the best backend that reproduces the model's own logits.

    weights: one of `WEIGHTS`, the weight format, which is part of what the target is; by default the precision of the checkpoint,
    but float32 where transformers runs it on a CPU. kv_cache: one of `KV_CACHES`, a narrow format for keys and values on a GPU.
    native: whether the native and fused backends may be used. Raises ModelError with one sentence.
    """
    if kv_cache is not None and not served(_device()):
        raise ModelError(f"keys and values are kept as {kv_cache} by kernels for a GPU, which need CUDA and Triton")
    if kv_cache == "fp8" and torch.cuda.is_available() and torch.cuda.get_device_capability() < _FP8_FROM:
        raise ModelError(f"'{torch.cuda.get_device_name()}' cannot read fp8: keep keys and values as int8")
    if (threads := usable()) < torch.get_num_threads():
        # torch counts the machine's processors, but not a container's CPU quota
        torch.set_num_threads(threads)
    checkpoint = inspected(resolve(str(path)))
    reason = "compiled kernels are switched off"
    config = stated(checkpoint.config) or _configuration(checkpoint)
    if native:
        try:
            return _of_the_llama_form(checkpoint, config, weights, kv_cache)
        except Unsuited as refusal:
            reason = str(refusal)
    with quiet():
        if isinstance(config, StatedConfig):
            config = _configuration(checkpoint)
        if weights is not None and weights not in DTYPES:
            raise ModelError(f"'{checkpoint.path}' cannot be held as {weights}: {reason}")
        if not _is_causal(config):
            # a vision-language model: transformers' mapping has no language model alone for it
            raise ModelError(f"the language model of '{checkpoint.path}' cannot be read alone: {reason}")
        # most models do not need it, and it imports 80 MB of torch's compiler
        from paceline.models.selfcheck import Identity, best_backend

        model = _weighed(checkpoint, config, DTYPES[weights] if weights else None)
        identity = Identity(checkpoint.name, context_length(model.config), checkpoint.eos_token_ids, kv_cache)
        try:
            return best_backend(model, identity)
        except ModelError:
            raise
        # untrusted configurations may make model code raise anything
        except Exception as error:
            raise ModelError(f"'{checkpoint.path}' does not run: {sentence(error)}") from error


def _of_the_llama_form(checkpoint: Checkpoint, config: Any, weights: str | None, kv_cache: str | None) -> LanguageModel:
    """The model on the native or fused backend, as this device needs. Raises Unsuited if transformers has to run it."""
    if _is_quantised(checkpoint):
        # some methods quantise plain weights while loading, and activations too
        raise Unsuited("it is quantised")
    if config.model_type in SEEING:
        config = text_config(config, has_head_of_its_own(Tensors(checkpoint)))
    if not torch.cuda.is_available():
        if kv_cache is not None:
            raise Unsuited("packed weights keep keys and values in the precision that suits them")
        return native_model(checkpoint, config, context_length(config), weights)
    if not served(_device()):
        raise Unsuited("packed weights are for processors only")
    try:
        # imports Triton, which a device's vendor may ship in a version of its own
        from paceline.models.fused import fused_model
    except ImportError as error:
        raise Unsuited(f"its kernels cannot be imported: {sentence(error)}") from error
    return fused_model(checkpoint, config, context_length(config), _device(), weights, kv_cache)


def _device() -> torch.device:
    """The device that models run on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def packs_weights(name: str | Path) -> bool:
    """Whether a model can be held in packed weights here, as far as its configuration says."""
    if torch.cuda.is_available() or not runs_here():
        return False
    try:
        checkpoint = inspected(resolve(str(name)))
        config = stated(checkpoint.config) or _configuration(checkpoint)
        form_of(config.get_text_config())
    # missing, unreadable or of another form: loading it reports what is wrong
    except Exception:
        return False
    return not _is_quantised(checkpoint)


def _asked(architecture: Any, config: Any) -> int:
    """Number of weights that a configuration asks for, counted on the meta device; 0 if the model cannot be built there."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in architecture(config).parameters())
    except Exception:
        # loading it reports what is wrong
        return 0


def _weighed(checkpoint: Checkpoint, config: Any, dtype: torch.dtype | None) -> Any:
    """The transformers model with every weight read from the checkpoint, in eval mode, frozen, on its device."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    scaled = _scaled(checkpoint)
    device = _device()
    if dtype is None and device.type == "cpu":
        dtype = torch.float32
    try:
        architecture: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        is_part = getattr(architecture, "config_class", None) is config.sub_configs.get("text_config", object)
        if is_part:
            # a vision-language model's language model has its own configuration, and the whole model's quantisation
            quantisation, config = getattr(config, "quantization_config", None), config.get_text_config()
            if quantisation is not None:
                config.quantization_config = quantisation
        # a quantised number takes at least one bit
        most = 8 * checkpoint.size_bytes if "quantization_config" in checkpoint.config else 2 * checkpoint.parameters
        asked = _asked(architecture, config)
        if asked > most:
            reason = f"asks for {asked:,} numbers, and its files hold {checkpoint.parameters:,}"
            raise ModelError(f"the config.json of '{checkpoint.path}' {reason}")
        # mismatched shapes are ignored here only to be reported and refused below
        model, report = architecture.from_pretrained(
            str(checkpoint.path),
            config=config,
            dtype="auto" if dtype is None else dtype,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except ModelError:
        raise
    # untrusted configurations may make model code raise anything
    except Exception as error:
        raise ModelError(f"'{checkpoint.path}' cannot be loaded: {sentence(error)}") from error
    for tensor, held, needed in sorted(report["mismatched_keys"]):
        raise ModelError(
            f"tensor '{tensor}' of '{checkpoint.path}' has shape {tuple(held)}, but its config.json asks for {tuple(needed)}"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(f"'{checkpoint.path}' lacks {len(missing)} tensors of its config.json, first '{missing[0]}'")
    unused = sorted(report["unexpected_keys"])
    if unused and not is_part:
        getLogger("paceline").warning(
            "'%s' holds %d tensors that transformers' %s does not use, first '%s'",
            checkpoint.path, len(unused), architecture.__name__, unused[0],
        )  # fmt: skip
    if scaled and getattr(config, "quantization_config", None) is None:
        raise ModelError(f"'{checkpoint.path}' holds weights of the type {scaled}, and transformers would not scale them")
    try:
        return _in_one_way(model).eval().requires_grad_(False).to(device)
    except torch.OutOfMemoryError as error:
        raise ModelError(f"the device has too little memory for '{checkpoint.name}'") from error


def _in_one_way(model: Any) -> Any:
    """The model without the limits that transformers' Mamba-2 layers put on the time steps of several rows, but not on those of a
    single one: a token would get other numbers in a draft or a prompt than in plain decoding."""
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))
    return model


def _scaled(checkpoint: Checkpoint) -> str | None:
    """The type of weights that are quantised numbers, which mean nothing without their scales; None if there are none. Raises
    ModelError if transformers does not know the method."""
    kinds = {kind for name, kind in Tensors(checkpoint).kinds.items() if name.endswith(".weight")}
    scaled = min((kind for kind in kinds if kind.startswith("F8_") or kind in _WHOLE), default=None)
    if scaled is None or _is_quantised(checkpoint):
        return scaled
    method = _quantisation(checkpoint).get("quant_method")
    unknown, unsaid = f"quantised by '{method}', which is not known here", "and its config.json does not say how to scale them"
    raise ModelError(f"'{checkpoint.path}' holds weights of the type {scaled}, {unknown if method else unsaid}")


def _quantisation(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's `quantization_config`; empty if it has none."""
    said = checkpoint.config.get("quantization_config")
    return said if isinstance(said, dict) else {}


def _is_quantised(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint states a quantisation method that transformers supports."""
    said = _quantisation(checkpoint)
    if not said:
        return False
    from transformers.quantizers.auto import AutoHfQuantizer

    try:
        with quiet():
            return AutoHfQuantizer.supports_quant_method(said)
    # it states no method, or not as a string
    except (ValueError, TypeError):
        return False


def _architectural(config: Any) -> Any:
    """A configuration without the entries `_NOT_ARCHITECTURE`, also in nested configurations."""
    if not isinstance(config, dict):
        return config
    return {name: _architectural(value) for name, value in config.items() if name not in _NOT_ARCHITECTURE}


def _with_present_names(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the rotation's current name."""
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, dict):
        return config
    kind = scaling.get("rope_type", scaling.get("type"))
    if not isinstance(kind, str) or kind not in _SUPERSEDED_ROTATIONS:
        return config
    return {**config, "rope_scaling": {**scaling, "rope_type": _SUPERSEDED_ROTATIONS[kind]}}


def _configuration(checkpoint: Checkpoint) -> Any:
    """transformers' own configuration of a causal language model; `auto_map` is ignored."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, file = checkpoint.config["model_type"], checkpoint.path / "config.json"
    if kind == "mistral" and "layer_types" in checkpoint.config:
        # as in transformers: Ministral 8B's files name the family "mistral", whose layers are all of one kind
        kind = "ministral"
    if kind not in CONFIG_MAPPING:
        own = "needs code of its own, which Paceline never runs" if "auto_map" in checkpoint.config else "is unknown"
        raise ModelError(f"'{checkpoint.path}' has the architecture '{kind}', which {own}")
    try:
        with quiet():
            config = CONFIG_MAPPING[kind].from_dict(
                _with_present_names({**_architectural(checkpoint.config), "model_type": kind})
            )
            text = config.get_text_config()
            if getattr(text, "rope_parameters", None):
                # applies an original length stated beside the rotation, which for most families is set after the constructor
                text.standardize_rope_params()
    # a configuration's constructor does not validate its arguments, and may raise anything
    except Exception as error:
        raise ModelError(f"'{file}' is not a valid '{kind}' configuration: {sentence(error)}") from error
    if not _is_causal(config) and kind not in SEEING:
        raise ModelError(f"'{checkpoint.path}' has the architecture '{kind}', which is no causal language model")
    return config


def _is_causal(config: Any) -> bool:
    """Whether transformers has a causal language model of this configuration."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
