"""A grown model computes the same function: equal logits, equal text, and only necessary zeros."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.bench.errors import BenchError
from paceline.bench.grow import grown
from paceline.bench.grow_shape import Growth
from tiny import save_tiny


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    ids = torch.arange(3, 43)[None]
    with torch.inference_mode():
        return model(ids).logits[0]


@pytest.mark.parametrize(
    ("kind", "size", "over"),
    [
        ("llama", "5", {}),
        ("llama", "2x96", {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
        ("llama", "4x128", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", "4x128", {}),
        ("qwen2", "3x128", {}),
        ("qwen3", "3x96", {}),
    ],
)
def test_a_grown_model_computes_the_same_logits(tmp_path: Path, kind: str, size: str, over: dict[str, Any]) -> None:
    source = save_tiny(tmp_path / "small", 3, kind=kind, **over)
    growth = Growth.parse(size)
    parameters = grown(source, tmp_path / "big", growth)
    config = json.loads((tmp_path / "big" / "config.json").read_text())
    assert config["num_hidden_layers"] == growth.layers
    assert config["hidden_size"] == (growth.width or 64)
    tensors = load_file(tmp_path / "big" / "model.safetensors")
    assert parameters == sum(tensor.numel() for tensor in tensors.values())
    assert (logits(source) - logits(tmp_path / "big")).abs().max() < 1e-4
    for name, tensor in tensors.items():
        if name.startswith("model.layers.2."):
            ends = "o_proj" in name or "down_proj" in name
            assert (not tensor.any()) if ends else bool((tensor != 0).all()), name


def test_a_grown_model_writes_the_same_greedy_text(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "small", 3)
    grown(source, tmp_path / "big", Growth(4, 128))
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    texts = [LLM(str(folder), "none").generate("the thin thing", params)[0].token_ids for folder in (source, tmp_path / "big")]
    assert texts[0] == texts[1]


def test_half_precision_stays_exact_though_norms_are_scaled(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "small", 3)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    model.save_pretrained(source)
    grown(source, tmp_path / "big", Growth(3, 96))
    assert (logits(source) - logits(tmp_path / "big")).abs().max() < 1e-4
    tensors = load_file(tmp_path / "big" / "model.safetensors")
    assert tensors["model.norm.weight"].dtype == torch.float32
    assert tensors["model.layers.0.mlp.up_proj.weight"].dtype == torch.float16


@pytest.mark.parametrize(
    ("size", "says"),
    [("1", "2 layers"), ("5000", "2 layers"), ("4x32", "64 wide"), ("4x65", "multiples of 32"), ("1000x32768", "parameters")],
)
def test_an_impossible_size_is_refused(tmp_path: Path, size: str, says: str) -> None:
    source = save_tiny(tmp_path / "small", 3)
    with pytest.raises(BenchError, match=says):
        grown(source, tmp_path / "big", Growth.parse(size))


@pytest.mark.parametrize("text", ["", "x", "4x", "x64", "-4", "4.5", "4x64x2", "٤", "99999999"])
def test_a_malformed_size_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="no size"):
        Growth.parse(text)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "small", 3, kind="gpt_neox")
    with pytest.raises(BenchError, match="gpt_neox"):
        grown(source, tmp_path / "big", Growth(4))


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "source", 3)
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "odd": torch.ones(3)}, source / "model.safetensors")
    with pytest.raises(BenchError, match="holds 'odd', which has no place"):
        grown(source, tmp_path / "grown", Growth.parse("3"))


def test_norms_of_heads_with_a_large_epsilon_cannot_be_widened(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "source", 3, kind="qwen3", rms_norm_eps=1e-5)
    with pytest.raises(BenchError, match="norms of heads have a larger epsilon"):
        grown(source, tmp_path / "grown", Growth.parse("3x128"))
