"""GGUF: a Llama checkpoint written with the `gguf` package, for llama.cpp and OpenVINO GenAI.

Matrices in the wanted format, norms in float32. Rows of the query and key projections are reordered, since llama.cpp rotates
neighbouring pairs where transformers rotates halves. Tokens are named, but only token ids are ever exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from paceline.models.base import ModelError
from paceline.models.checkpoint import Checkpoint, inspected, read_object

FORMATS = {"fp32": "F32", "bf16": "BF16", "w16a16": "BF16", "fp16": "F16", "int8": "Q8_0", "w8a8": "Q8_0", "int4": "Q4_0"}
"""This engine's weight formats -> GGUF's of as many bits."""
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
}


def gguf_file(source: Path, folder: Path, weights: str) -> Path:
    """The checkpoint as a GGUF file in `folder`, written unless it is there. Raises ModelError for one that is no plain Llama."""
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
    rope = config.get("rope_parameters") or {}
    if config["model_type"] != "llama" or rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        raise ModelError(f"'{checkpoint.path.name}' cannot be written as GGUF here: only plain Llama models can")
    writer = gguf.GGUFWriter(file, "llama")
    heads = config["num_attention_heads"]
    key_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_name(checkpoint.path.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType[("ALL_" if kind == "F32" else "MOSTLY_") + kind])
    _add_tokenizer(writer, checkpoint)
    held = gguf.GGMLQuantizationType[kind]
    for name, tensor in _tensors(checkpoint, {"q_proj": heads, "k_proj": key_heads}):
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
        raise ModelError(f"the tokenizer of '{checkpoint.path.name}' is no byte-level BPE: it cannot be written as GGUF here")
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
    """Every tensor under its GGUF name, float32. rotated: projection -> its heads, whose rows are reordered."""
    for shard in checkpoint.shards:
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                module, kind = name.rsplit(".", 1)
                if kind != "weight":
                    raise ModelError(f"'{checkpoint.path.name}' has '{name}', which a plain Llama has not")
                tensor = file.get_tensor(name).float().numpy()
                heads = rotated.get(module.rpartition(".")[2])
                yield f"{_renamed(module)}.weight", np.ascontiguousarray(_paired(tensor, heads) if heads else tensor)


def _renamed(module: str) -> str:
    if module in _OUTSIDE:
        return _OUTSIDE[module]
    layer, _, inner = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_BLOCK[inner]}"


def _paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head, first and second half, interleaved."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)
