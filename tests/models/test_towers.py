"""Vision-language models: their language model is loaded alone, from older and newer files, and computes the right logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
)

from models.test_families import largest_error
from paceline.models.base import ModelError
from paceline.models.load import load_model
from paceline.models.native import NativeModel

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 97, "max_position_embeddings": 256,
}  # fmt: skip
SIGHT: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip


def made(kind: str) -> Any:
    torch.manual_seed(1)
    if kind == "gemma3":
        text = {**SIZES, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 24}
        # the whole model ignores this setting
        text["final_logit_softcapping"] = 0.1
        config = Gemma3Config(
            text_config=text, vision_config={**SIGHT, "model_type": "siglip_vision_model"}, mm_tokens_per_image=4
        )
        return Gemma3ForConditionalGeneration(config).eval()
    sight = {**SIGHT, "model_type": "pixtral"}
    return Mistral3ForConditionalGeneration(
        Mistral3Config(text_config={**SIZES, "model_type": "mistral"}, vision_config=sight)
    ).eval()


NAMES = {
    "newer": {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."},
    "older": {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
}
"""Prefixes of tensor names in files of that age, by those of the other age."""


@pytest.mark.parametrize("age", NAMES)
@pytest.mark.parametrize("kind", ["gemma3", "mistral3"])
def test_text_takes_the_language_model_alone(tmp_path: Path, kind: str, age: str) -> None:
    reference = made(kind)
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(file).items():
        prefix = next((prefix for prefix in NAMES[age] if name.startswith(prefix)), "")
        renamed[NAMES[age].get(prefix, "") + name.removeprefix(prefix)] = tensor
    assert any("vision_tower" in name for name in renamed)
    save_file(renamed, file, metadata={"format": "pt"})
    model = load_model(tmp_path)
    assert isinstance(model, NativeModel)
    assert largest_error(model, reference) < 1e-4


def test_a_stored_output_head_is_used_and_not_the_embedding(tmp_path: Path) -> None:
    """By default the whole model's configuration ties them, whatever its text configuration says."""
    reference = made("mistral3")
    reference.save_pretrained(tmp_path)
    file, head = tmp_path / "model.safetensors", torch.randn(97, 64)
    save_file({**load_file(file), "language_model.lm_head.weight": head}, file, metadata={"format": "pt"})
    reference.lm_head.weight = torch.nn.Parameter(head)
    assert largest_error(load_model(tmp_path), reference) < 1e-4


def test_a_language_model_that_cannot_be_had_is_refused_in_words(tmp_path: Path) -> None:
    made("mistral3").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "language_model.model.sinks": torch.ones(4)}, file, metadata={"format": "pt"})
    told = r"^the language model of '.*' cannot be read alone: its tensor 'model\.sinks' has no place"
    with pytest.raises(ModelError, match=told):
        load_model(tmp_path)


@pytest.mark.parametrize("kind", ["gemma3", "mistral3"])
def test_a_stored_output_head_without_an_embedding_serves_as_both(tmp_path: Path, kind: str) -> None:
    reference = made(kind)
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    (name,) = [name for name in tensors if name.endswith("embed_tokens.weight")]
    tensors["language_model.lm_head.weight"] = tensors.pop(name)
    save_file(tensors, file, metadata={"format": "pt"})
    model = load_model(tmp_path)
    assert isinstance(model, NativeModel)
    assert largest_error(model, reference) < 1e-4
