"""Models through transformers with the configuration or forward of composite models, as published ones have."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from models.test_families import largest_error
from paceline.models.base import LanguageModel, ModelError
from paceline.models.load import load_model
from tiny import tiny_model

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "vocab_size": 97, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SIGHT: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "vision_output_dim": 32, "projector_input_dim": 16,
    "projector_output_dim": 16,
}  # fmt: skip
SEEING: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "llama4": {
        "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 16, "no_rope_layers": [1, 0],
        "interleave_moe_layer_step": 2, "floor_scale": 16,
    },
}  # fmt: skip


def seeing(folder: Path, kind: str) -> Any:
    """A small vision-language model with random weights, saved in a folder."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, text_config={**SIZES, **SEEING[kind]}, vision_config=SIGHT)
    model = AutoModelForImageTextToText.from_config(config).float().eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", SEEING)
def test_a_vision_models_text_is_computed_by_its_text_configuration(tmp_path: Path, kind: str) -> None:
    reference = seeing(tmp_path, kind)
    assert largest_error(load_model(tmp_path), reference) < 1e-4


@pytest.mark.parametrize("kind", SEEING)
def test_a_vision_models_quantised_weights_are_never_read_without_their_scales(tmp_path: Path, kind: str) -> None:
    """The whole model's configuration states the quantisation, that of its text does not."""
    reference = seeing(tmp_path, kind)
    tensors = load_file(tmp_path / "model.safetensors")
    narrow = {name: weight for name, weight in tensors.items() if "language_model" in name and name.endswith("proj.weight")}
    scales = {name: weight.abs().max() / 100 for name, weight in narrow.items()}
    for name, weight in narrow.items():
        tensors |= {name: (weight / scales[name]).to(torch.float8_e4m3fn), f"{name}_scale_inv": scales[name].reshape(1, 1)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    stated = json.loads((tmp_path / "config.json").read_text())
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps({**stated, "quantization_config": fp8}))
    if find_spec("accelerate") is None:
        with pytest.raises(ModelError, match="FP8 quantized model requires accelerate"):
            load_model(tmp_path)
    else:
        assert largest_error(load_model(tmp_path), reference) < 0.1


def test_a_gemma_whose_layers_share_keys_decodes_many_sequences_at_once(tmp_path: Path) -> None:
    """As in E2B and E4B: without row indices, transformers takes a number of wanted rows and slices its mask with it too."""
    kinds = ["sliding_attention", "full_attention"] * 2
    shape = {"layer_types": kinds, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 97}
    reference = tiny_model("gemma4_text", **SIZES | shape)
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert isinstance(model, LanguageModel)
    assert largest_error(model, reference) < 1e-4


@pytest.mark.parametrize("name", ["other.safetensors", "adapter_model.bin"])
def test_a_configuration_does_not_say_which_file_holds_the_weights(tmp_path: Path, name: str) -> None:
    """transformers would read that file, even a pickle, and no other backend would."""
    reference = tiny_model("gpt_neox")
    reference.save_pretrained(tmp_path)
    others = {key: tensor + 1 for key, tensor in load_file(tmp_path / "model.safetensors").items()}
    if name.endswith(".bin"):
        torch.save(others, tmp_path / name)
    else:
        save_file(others, tmp_path / name, metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_weights": name}))
    assert largest_error(load_model(tmp_path), reference) < 1e-4
