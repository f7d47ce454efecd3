"""GGUF: a Llama, Mistral, Qwen2 or Qwen3 checkpoint written with the `gguf` package, for llama.cpp and OpenVINO GenAI.

Matrices are in the wanted format, norms and biases in float32. For Llama and Mistral the rows of the query and key projections
are reordered, since llama.cpp rotates neighbouring pairs where transformers rotates halves. The file has token names, but only
token ids are exchanged.

Source: the tensor names and keys of the `gguf` package; how each architecture rotates: llama.cpp's own converter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from paceline.models.base import ModelError
from paceline.models.checkpoint import Checkpoint, inspected, read_object

FORMATS = {
    "fp32": "F32",
    "bf16": "BF16",
    "w16a16": "BF16",
    "fp16": "F16",
    "int8": "Q8_0",
    "w8a8": "Q8_0",
    "int4": "Q4_0",
    "w4a8": "Q4_0",
}
"""This engine's weight formats -> GGUF formats with the same number of bits."""
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""`model_type` -> llama.cpp's name."""
_PAIRED = "llama"
"""The architecture that rotates neighbouring pairs."""
_EXTRAS = {
    "qwen2": frozenset({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}),
    "qwen3": frozenset({"self_attn.q_norm.weight", "self_attn.k_norm.weight"}),
}
"""Tensors of a layer in addition to those of a plain Llama."""


def gguf_file(source: Path, folder: Path, weights: str) -> Path:
    """The checkpoint as a GGUF file in `folder`, written unless it exists. Raises ModelError if it cannot be converted."""
    kind = FORMATS[weights]
    file = folder / f"{source.name}-{kind}.gguf"
    if not file.exists():
        part = file.with_suffix(".part")
        _write(inspected(source), part, kind)
        part.rename(file)
    return file


def _write(checkpoint: Checkpoint, file: Path, kind: str) -> None:
    import gguf  # pyright: ignore[reportMissingImports]

    config = checkpoint.config
    # older files have the base and the scaling in separate entries
    rope = {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    stretched = rope.get("rope_type") or rope.get("type") or "default"
    architecture = _ARCHITECTURES.get(config["model_type"])
    if architecture is None or stretched not in ("default", "llama3") or _slides(config):
        known = "Llama, Mistral, Qwen2 and Qwen3 can be, without sliding windows and stretched only as Llama 3 is"
        raise ModelError(f"'{checkpoint.name}' cannot be written as GGUF here: {known}")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"'{checkpoint.name}' cannot be written as GGUF here: its activation is '{config['hidden_act']}'")
    writer = gguf.GGUFWriter(file, architecture)
    heads = config["num_attention_heads"]
    key_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_name(checkpoint.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    base = float(rope["rope_theta"] or 10000.0)
    writer.add_rope_freq_base(base)
    if stretched == "llama3":
        writer.add_tensor("rope_freqs.weight", _stretches(rope, base, head_dim))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType[("ALL_" if kind == "F32" else "MOSTLY_") + kind])
    _add_tokenizer(writer, checkpoint)
    held = gguf.GGMLQuantizationType[kind]
    paired = {"q_proj": heads, "k_proj": key_heads} if architecture == _PAIRED else {}
    for name, tensor in _tensors(checkpoint, paired):
        if tensor.ndim > 1:
            writer.add_tensor(name, gguf.quants.quantize(tensor, held), raw_dtype=held)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, checkpoint: Checkpoint) -> None:
    """Tokens and merges of a byte-level BPE. Raises ModelError for another kind."""
    tokenizer = read_object(checkpoint.path / "tokenizer.json")
    model, added = tokenizer.get("model", {}), tokenizer.get("added_tokens", [])
    if model.get("type") != "BPE":
        raise ModelError(f"the tokenizer of '{checkpoint.name}' is no byte-level BPE: it cannot be written as GGUF here")
    names = {number: token for token, number in model["vocab"].items()} | {token["id"]: token["content"] for token in added}
    control = {token["id"] for token in added}
    ids = range(checkpoint.config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([names.get(number, f"[unused{number}]") for number in ids])
    writer.add_token_types([_CONTROL if i in control else _NORMAL if i in names else _UNUSED for i in ids])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    for end in sorted(checkpoint.eos_token_ids)[:1]:
        writer.add_eos_token_id(end)


def _tensors(checkpoint: Checkpoint, rotated: dict[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor by its GGUF name, float32. rotated: projections whose rows are reordered -> number of their heads."""
    family = checkpoint.config["model_type"]
    extras = _EXTRAS.get(family, frozenset[str]())
    for shard in checkpoint.shards:
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                module, kind = name.rsplit(".", 1)
                inner = name.removeprefix("model.layers.").partition(".")[2]
                if (kind != "weight" or module.endswith(("q_norm", "k_norm"))) and inner not in extras:
                    raise ModelError(f"'{checkpoint.name}' has '{name}', which a {family} model has not")
                tensor = file.get_tensor(name).float().numpy()
                heads = rotated.get(module.rpartition(".")[2])
                yield f"{_renamed(module)}.{kind}", np.ascontiguousarray(_paired(tensor, heads) if heads else tensor)


def _renamed(module: str) -> str:
    if module in _OUTSIDE:
        return _OUTSIDE[module]
    layer, _, inner = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_BLOCK[inner]}"


def _paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows with the first and second half of each head interleaved."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _slides(config: Mapping[str, Any]) -> bool:
    """Whether the model uses a sliding window, which these architectures of llama.cpp do not support."""
    # missing entries have transformers' defaults: a window of 4096 for Mistral, none in use for Qwen
    mistral = config["model_type"] == "mistral"
    window = config.get("sliding_window", 4096 if mistral else None) if config.get("use_sliding_window", mistral) else None
    return window is not None and window < config["max_position_embeddings"]


def _stretches(rope: Mapping[str, Any], base: float, head_dim: int) -> np.ndarray:
    """The divisors of the frequencies for longer texts, float32 [head_dim / 2].

    Source: Llama 3.1's rotation in transformers (`rope_type` "llama3").
    """
    lengths = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    factor, low, high = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(rope["original_max_position_embeddings"]) / lengths
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / (smooth + (1.0 - smooth) / factor)).astype(np.float32)
