"""Every family of the native backend equals transformers; models outside it load with another backend."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_model
from transformers import AutoModelForCausalLM

from compiled import as_read
from models.test_families import largest_error
from native import FORMATS, checkpoint, native, rewritten, with_half_keys
from paceline.kernels.native.formats import FORMATS as FORMS
from paceline.kernels.native.layout import HALVES_AND_REST
from paceline.kernels.native.needs import laid_as
from paceline.models.base import LanguageModel, ModelError, Scores
from paceline.models.load import load_model
from paceline.models.native import NativeModel
from paceline.models.rotation import Rotation
from paceline.step import Step
from paceline.tree import DraftTree
from represented import represented
from stepping import alone, missing, score, sequence

TOLERANCE = 1e-4
"""Largest difference of a logit; logits range over tens."""
HALVES_TOLERANCE = 3e-3
"""The same with keys and values rounded to float16: earlier last bits decide how some of them are rounded."""

_BOTH = ["sliding_attention", "full_attention"]
_ROPE: dict[str, Any] = {"rope_theta": 10000.0, "original_max_position_embeddings": 32}
_MIXTURE: dict[str, Any] = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, scaled as llama3": (
        "llama",
        {"rope_parameters": {**_ROPE, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    ),
    "llama, scaled linearly": ("llama", {"rope_parameters": {**_ROPE, "rope_type": "linear", "factor": 4.0}}),
    "llama, scaled as yarn": ("llama", {"rope_parameters": {**_ROPE, "rope_type": "yarn", "factor": 4.0}}),
    "heads of 16, one of keys": ("llama", {"head_dim": 16, "num_key_value_heads": 1}),
    "heads of 48": ("llama", {"head_dim": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 96}),
    "heads of 80, odd sizes": (
        "llama",
        {"head_dim": 80, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 72, "intermediate_size": 100},
    ),
    "odd sizes, tied, 262 tokens": (
        "llama",
        {"hidden_size": 88, "intermediate_size": 130, "vocab_size": 262, "tie_word_embeddings": True},
    ),
    "llama, words of other families": (
        "llama",
        {
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 99,
            "attn_logit_softcapping": 1.0,
            "final_logit_softcapping": 2.0,
        },
    ),
    "mistral": ("mistral", {}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, sliding": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "layer_types": _BOTH}),
    "qwen3": ("qwen3", {}),
    "qwen3, biases, sliding": (
        "qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": 3, "layer_types": _BOTH},
    ),
    "gemma": ("gemma", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 24, "final_logit_softcapping": 12.0}),
    "gemma2, no caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3_text": ("gemma3_text", {"query_pre_attn_scalar": 24, "tie_word_embeddings": True}),
    "phi3": ("phi3", {}),
    "phi3, rotated in part, sliding": (
        "phi3",
        {"sliding_window": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "phi3, longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                **_ROPE,
                "rope_type": "longrope",
                "factor": 2.0,
                "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
                "long_factor": [4.0] * 6,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    "stablelm": ("stablelm", {}),
    "stablelm, biases": ("stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0], "attention_bias": True, "mlp_bias": True}),
    "smollm3, windows": ("smollm3", {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 3}),
    "granite": (
        "granite",
        {"residual_multiplier": 0.22, "logits_scaling": 0.4, "attention_multiplier": 0.3, "embedding_multiplier": 3.0},
    ),
    "granite, biases, tied": ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mixtral": ("mixtral", {"sliding_window": 3}),
    "mixtral, no window": ("mixtral", {"num_experts_per_tok": 3}),
    "qwen3_moe": ("qwen3_moe", {**_MIXTURE, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3_moe, weights as they are": ("qwen3_moe", {**_MIXTURE, "attention_bias": True, "num_experts_per_tok": 1}),
    "olmoe": ("olmoe", _MIXTURE),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "olmo2, one head of keys": ("olmo2", {"num_key_value_heads": 1, "hidden_size": 72}),
    "olmo3": ("olmo3", {"sliding_window": 3, "layer_types": _BOTH}),
    "exaone4": ("exaone4", {"head_dim": 16, "sliding_window": 3, "layer_types": _BOTH}),
    "exaone4, no windows": (
        "exaone4",
        {"head_dim": 16, "sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 2},
    ),
    "glm": ("glm", {"head_dim": 16}),
    "glm4": ("glm4", {"head_dim": 16, "attention_bias": True}),
    "glm4, a quarter": ("glm4", {"head_dim": 32, "partial_rotary_factor": 0.25}),
    "ernie4_5": ("ernie4_5", {"head_dim": 16, "use_bias": True, "tie_word_embeddings": True}),
    "helium": ("helium", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "seed_oss": ("seed_oss", {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True}),
    "cwm": ("cwm", {"head_dim": 16, "sliding_window": 3, "layer_types": _BOTH, "mlp_bias": True}),
    "vaultgemma": ("vaultgemma", {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 3, "layer_types": _BOTH}),
    "ministral": ("ministral", {"head_dim": 16, "sliding_window": 3, "layer_types": _BOTH}),
    "ministral3": (
        "ministral3",
        {
            "head_dim": 16,
            "sliding_window": 7,
            "rope_parameters": {
                **_ROPE,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 4,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.7,
            },
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_what_transformers_computes(tmp_path: Path, case: str) -> None:
    """Prompts in chunks, trees, a commit and the next step of three sequences at once; and a greedy text of its own."""
    kind, over = CASES[case]
    folder, reference = checkpoint(tmp_path, kind, **over)
    model = native(folder)
    assert largest_error(model, reference) < TOLERANCE
    owner, cache = sequence(0, [5, 80, 33]), model.new_cache()
    for _ in range(8):
        got = score(model, cache, [missing(cache, owner, DraftTree.root(owner.root))]).logits[0]
        cache.truncate(0, 0)
        wanted = alone(reference, owner.tokens)[-1]
        assert (got - wanted).abs().max() < TOLERANCE
        assert int(got.argmax()) == int(wanted.argmax())
        owner.commit((int(got.argmax()),), ())


OUTSIDE: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt2": ("gpt2", {}, "'gpt2'"),
    "gpt_oss": ("gpt_oss", {}, "'gpt_oss'"),
    "experts in some layers": ("qwen3_moe", {**_MIXTURE, "head_dim": 16, "mlp_only_layers": [0]}, "have no experts"),
    "clipped": ("olmoe", {**_MIXTURE, "clip_qkv": 5.0}, "clips queries"),
    "phi": ("phi", {}, "'phi'"),
    "gelu": ("llama", {"hidden_act": "gelu"}, "activation is 'gelu'"),
    "dynamic": ("llama", {"rope_parameters": {**_ROPE, "rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    "an odd part of a head": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.3125}},
        "5 of the 16 numbers",
    ),
    "parallel": ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual"),
    "norms per head": ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
    "logits turned round": ("gemma2", {"final_logit_softcapping": -3.0}, "final_logit_softcapping is -3.0"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_model_outside_goes_by_the_other_backend(tmp_path: Path, case: str) -> None:
    kind, over, reason = OUTSIDE[case]
    folder, reference = checkpoint(tmp_path, kind, **over)
    model = load_model(folder)
    assert not isinstance(model, NativeModel)
    assert largest_error(model, reference) < TOLERANCE
    assert reason in refusal(folder)


def test_a_mistral_that_names_the_kinds_of_its_layers_is_a_ministral(tmp_path: Path) -> None:
    """transformers' AutoConfig reads it as Ministral; Ministral 8B was published like this."""
    folder, reference = checkpoint(tmp_path, "ministral", head_dim=16, sliding_window=3, layer_types=_BOTH)
    edit(folder, model_type="mistral", architectures=["MistralForCausalLM"])
    taken = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert type(taken) is type(reference)
    assert largest_error(native(folder), reference) < TOLERANCE


def refusal(folder: Path, weights: str = "int8") -> str:
    with pytest.raises(ModelError) as error:
        load_model(folder, weights=weights)
    message = str(error.value)
    assert "\n" not in message
    assert f"cannot be held as {weights}" in message
    return message


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


_GEMMA3 = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
_FACTORS = {"short_factor": [1.0 + 0.1 * pair for pair in range(6)], "long_factor": [4.0] * 6}
AS_PUBLISHED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Llama 3.2": (
        "llama",
        {"tie_word_embeddings": True},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "original_max_position_embeddings": 16,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
        },
    ),
    "Mistral with a yarn": (
        "mistral",
        {},
        {"rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "finetuned": True}},
    ),
    "Qwen2.5": ("qwen2", {}, {"sliding_window": 3, "use_sliding_window": False, "max_window_layers": 1, "layer_types": None}),
    "Qwen2, windows behind a layer": (
        "qwen2",
        {},
        {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1, "layer_types": None},
    ),
    "Gemma 1": ("gemma", {"head_dim": 16}, {"hidden_act": "gelu", "hidden_activation": None}),
    "Gemma 2": ("gemma2", {}, {"layer_types": None, "cache_implementation": "hybrid"}),
    "Gemma 3": (
        "gemma3_text",
        _GEMMA3,
        {
            "rope_local_base_freq": 1e3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 3,
            "layer_types": None,
        },
    ),
    "Phi-4-mini": (
        "phi3",
        {},
        {
            "rope_scaling": {"type": "longrope", **_FACTORS},
            "original_max_position_embeddings": 64,
            "partial_rotary_factor": 0.75,
            "sliding_window": 100,
            "interpolate_factor": 1,
        },
    ),
    "StableLM 2": ("stablelm", {"use_qkv_bias": True}, {"partial_rotary_factor": 0.25}),
    "a length beside that of the rotation": (
        "llama",
        {},
        {
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4},
            "original_max_position_embeddings": 64,
        },
    ),
    "a length beside a longrope without one": (
        "llama",
        {},
        {
            "rope_scaling": {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [4.0] * 8},
            "original_max_position_embeddings": 128,
        },
    ),
    "Ministral 3, a length beside that of the growth": (
        "ministral3",
        # queries are scaled up, which also increases rounding errors from layer to layer
        {"num_hidden_layers": 1},
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "llama_4_scaling_beta": 0.1,
            },
            "original_max_position_embeddings": 4,
        },
    ),
}


@pytest.mark.parametrize("case", AS_PUBLISHED)
def test_files_in_the_words_of_their_time_are_read_as_transformers_reads_them(tmp_path: Path, case: str) -> None:
    kind, over, words = AS_PUBLISHED[case]
    folder, _ = checkpoint(tmp_path, kind, **over)
    edit(folder, rope_parameters=None, rope_theta=5e5, **words)
    assert same(native(folder), AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval())


def test_gemma_3_rotates_by_the_type_of_a_layer_whatever_else_is_stated(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, "gemma3_text")
    edit(folder, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    assert same(native(folder), AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval())


def test_other_families_do_not_rotate_by_the_type_of_a_layer(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, "qwen3")
    edit(folder, rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e4}})
    assert "which its family does not" in refusal(folder)
    assert isinstance(loaded_or_sentence(folder), str)


def test_attention_in_both_directions_is_refused(tmp_path: Path) -> None:
    """transformers applies `is_causal` in every family."""
    folder, _ = checkpoint(tmp_path)
    edit(folder, is_causal=False)
    assert "attends in both directions" in refusal(folder)
    assert isinstance(loaded_or_sentence(folder), str)


def test_layer_types_without_a_meaning_here_go_by_the_other_backend(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, "qwen3")
    edit(folder, layer_types=["chunked_attention", "full_attention"])
    with pytest.raises(ModelError):
        load_model(folder, weights="int8")


def test_windows_of_no_width_go_by_the_other_backend(tmp_path: Path) -> None:
    """For these, transformers makes no mask."""
    folder, _ = checkpoint(tmp_path, "qwen3")
    edit(folder, layer_types=["sliding_attention", "full_attention"], sliding_window=None)
    assert "how wide" in refusal(folder)
    assert isinstance(loaded_or_sentence(folder), str)


def test_a_checkpoint_to_be_quantised_at_load_goes_by_the_other_backend(tmp_path: Path) -> None:
    folder, reference = checkpoint(tmp_path)
    edit(folder, quantization_config={"quant_method": "unheard of"})
    assert same(native(folder), reference)
    edit(folder, quantization_config={"load_in_4bit": True})
    assert "it is quantised" in refusal(folder)


EXTRA = {
    "model.layers.1.self_attn.sinks": torch.ones(4),
    "model.layers.0.self_attn.q_proj.bias": torch.ones(64),
    "model.layers.1.mlp.down_proj.bias": torch.ones(64),
    "model.layers.0.self_attn.q_norm.weight": torch.full((16,), 3.0),
    "model.layers.0.pre_feedforward_layernorm.weight": torch.full((64,), 3.0),
    "model.norm.bias": torch.ones(64),
    "lm_head.bias": torch.ones(97),
    "model.layers.0.self_attn.qkv_proj.weight": torch.ones(128, 64),
}
"""Tensors that a Llama's configuration has no place for, though some have a meaning in other families."""


def same(model: LanguageModel, reference: Any) -> bool:
    return largest_error(model, reference) < TOLERANCE


@pytest.mark.parametrize("name", EXTRA)
def test_a_model_with_unknown_tensors_goes_by_the_other_backend(tmp_path: Path, caplog, name: str) -> None:
    """transformers ignores them, so the model may not be what its files mean: the user is told. A backend that used them would be
    another model."""
    folder, reference = checkpoint(tmp_path)
    with caplog.at_level("WARNING", "paceline"):
        model = load_model(rewritten(folder, **{name: EXTRA[name]}))
    assert not isinstance(model, NativeModel)
    assert f"holds 1 tensors that transformers' LlamaForCausalLM does not use, first '{name}'" in caplog.text
    assert same(model, reference)
    assert name in refusal(folder)


@pytest.mark.parametrize(("kind", "over"), [("llama", {}), ("qwen3", {"attention_bias": True}), ("gemma2", {}), ("stablelm", {})])
def test_no_tensor_can_be_missing(tmp_path: Path, kind: str, over: dict[str, Any]) -> None:
    folder, _ = checkpoint(tmp_path, kind, num_hidden_layers=1, layer_types=["full_attention"], **over)
    file = folder / "model.safetensors"
    whole, tensors = file.read_bytes(), load_file(file)
    for name in tensors:
        rewritten(folder, **{name: None})
        with pytest.raises(ModelError, match=r"lacks 1 tensors .* first '" + name.replace(".", r"\.")):
            load_model(folder)
        file.write_bytes(whole)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
def test_a_tied_model_that_was_saved_without_its_head_is_read_as_one_that_has_it(tmp_path: Path, kind: str) -> None:
    """Tensor names begin with `layers.`, not with `model.layers.`, as in embedding models."""
    folder, reference = checkpoint(tmp_path, kind, tie_word_embeddings=True)
    reference.model.save_pretrained(folder)
    assert "embed_tokens.weight" in load_file(folder / "model.safetensors")
    assert same(native(folder), reference)


def test_an_untied_model_that_was_saved_without_its_head_is_refused(tmp_path: Path) -> None:
    folder, reference = checkpoint(tmp_path)
    reference.model.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"lacks 1 tensors .* first 'lm_head.weight'"):
        load_model(folder)
    # with the head added under its usual name, it is read like transformers reads it
    with_head = rewritten(folder, **{"lm_head.weight": reference.lm_head.weight.detach().clone()})
    assert same(native(with_head), reference)
    assert same(native(with_head), AutoModelForCausalLM.from_pretrained(folder).eval())


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_tied_model_stored_with_its_head_alone_loads(tmp_path: Path, kind: str) -> None:
    folder, reference = checkpoint(tmp_path, kind, tie_word_embeddings=True)
    save_model(reference, str(folder / "model.safetensors"), metadata={"format": "pt"})
    assert "model.embed_tokens.weight" not in load_file(folder / "model.safetensors")
    assert same(native(folder), reference)


def test_a_stored_head_of_a_tied_model_is_left_aside(tmp_path: Path) -> None:
    folder, reference = checkpoint(tmp_path, tie_word_embeddings=True)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert same(native(rewritten(folder, **{"lm_head.weight": embedding.clone()})), reference)


def test_a_head_of_its_own_counts_though_the_model_is_said_to_be_tied(tmp_path: Path) -> None:
    folder, reference = checkpoint(tmp_path, tie_word_embeddings=True)
    head = torch.randn_like(load_file(folder / "model.safetensors")["model.embed_tokens.weight"])
    model = native(rewritten(folder, **{"lm_head.weight": head}))
    assert not same(model, reference)
    # as in transformers, which reads the head and ties nothing then
    assert same(model, AutoModelForCausalLM.from_pretrained(folder).eval())


def test_rope_scaling_beside_rope_parameters_is_applied(tmp_path: Path) -> None:
    folder, reference = checkpoint(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    edit(folder, rope_scaling={"rope_type": "linear", "factor": 4.0})
    model = load_model(folder)
    assert not same(model, reference)
    assert same(model, AutoModelForCausalLM.from_pretrained(folder).eval())


def test_a_setting_of_another_family_is_ignored(tmp_path: Path) -> None:
    folder, reference = checkpoint(tmp_path, "stablelm")
    edit(folder, rms_norm_eps=0.5)
    assert same(native(folder), reference)


def test_tensors_that_are_left_aside_have_no_say_in_the_precision(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path)
    halves = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    for kind in (torch.float32, torch.float64):
        frequencies = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(8, dtype=kind) for layer in (0, 1)}
        assert native(rewritten(folder, **halves, **frequencies)).weights == "fp16"


def test_heads_that_share_no_keys_evenly_are_refused(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, num_key_value_heads=4)
    edit(folder, num_key_value_heads=3)
    tensors = load_file(folder / "model.safetensors")
    cut = {name: tensor[:48] for name, tensor in tensors.items() if "k_proj" in name or "v_proj" in name}
    with pytest.raises(ModelError):
        load_model(rewritten(folder, **cut))


def loaded_or_sentence(folder: Path) -> LanguageModel | str:
    try:
        return load_model(folder)
    except ModelError as error:
        return str(error)


BAD_CONFIGURATIONS: list[dict[str, Any]] = [
    {"num_attention_heads": 0},
    {"hidden_size": -64},
    {"rms_norm_eps": None},
    {"vocab_size": 0},
    {"hidden_act": None},
    {"rope_parameters": {"rope_type": "yarn"}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
    {"partial_rotary_factor": -1.0},
    {"head_dim": 15},
    {"head_dim": -16},
    {"num_hidden_layers": 0},
    {"num_hidden_layers": 10**12},
    {"sliding_window": 10**30},
]


@pytest.mark.parametrize("changes", BAD_CONFIGURATIONS, ids=str)
def test_configurations_from_strangers_end_in_one_sentence_or_in_the_same_numbers(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder, reference = checkpoint(tmp_path)
    edit(folder, **changes)
    found = loaded_or_sentence(folder)
    assert "\n" not in found if isinstance(found, str) else same(found, reference)


def rotating(part: float, kind: str = "default", **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 1e4, "partial_rotary_factor": part, **more}


BEYOND_A_HEAD: list[tuple[str, dict[str, Any]]] = [
    *(("phi3", rotating(part)) for part in (1000.0, 2.0, 0.3125, 0.0, -1.0)),
    *(("stablelm", rotating(part)) for part in (1000.0, 2.0, 0.3125, -1.0)),
    ("llama", rotating(0, "linear", factor=2.0)),
    (
        "gemma3_text",
        {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": rotating(0.01, "linear", factor=2.0),
        },
    ),
]
"""Families and rotations; compiled code would write outside a head, or read outside a table."""


@pytest.mark.parametrize(("kind", "rotation"), BEYOND_A_HEAD, ids=str)
def test_a_rotation_larger_than_a_head_is_refused(tmp_path: Path, kind: str, rotation: dict[str, Any]) -> None:
    folder, _ = checkpoint(tmp_path, kind)
    edit(folder, rope_parameters=rotation)
    assert "it rotates" in refusal(folder)
    assert not isinstance(loaded_or_sentence(folder), NativeModel)


def test_heads_of_an_odd_size_are_refused(tmp_path: Path) -> None:
    """The tensors fit, and the configuration is read without transformers, which would have refused it."""
    folder, _ = checkpoint(tmp_path)
    edit(folder, head_dim=15)
    tensors = load_file(folder / "model.safetensors")
    rows = {"q_proj": 60, "k_proj": 30, "v_proj": 30}
    cut = {name: tensor[: rows[part]] for name, tensor in tensors.items() for part in rows if part in name}
    cut |= {name: tensor[:, :60].contiguous() for name, tensor in tensors.items() if "o_proj" in name}
    with pytest.raises(ModelError, match="not a valid 'llama' configuration"):
        load_model(rewritten(folder, **cut))


def test_a_rotation_table_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = Rotation.tables
    monkeypatch.setattr(Rotation, "tables", lambda self, *of: tuple(table[:, 1:] for table in tables(self, *of)))
    assert "rotation table" in refusal(checkpoint(tmp_path)[0])


FAILING: list[tuple[str, dict[str, Any]]] = [
    ("gemma2", {"query_pre_attn_scalar": -256}),
    ("mistral", {"sliding_window": 10**30}),
    ("llama", {"per_layer_config": {"1": {"rms_norm_eps": 0.5}}}),
]
"""Configurations that transformers accepts, and that fail only when a model is built."""


@pytest.mark.parametrize(("kind", "changes"), FAILING, ids=str)
def test_a_configuration_that_fails_to_load_natively_is_refused_and_raises_nothing_else(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    folder, _ = checkpoint(tmp_path, kind)
    edit(folder, **changes)
    assert refusal(folder)
    assert not isinstance(loaded_or_sentence(folder), NativeModel)


LACKING = [
    MemoryError(),
    OSError(12, "Cannot allocate memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"),
    RuntimeError("unable to mmap 9 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
]


@pytest.mark.parametrize("error", LACKING, ids=str)
def test_lack_of_memory_raises_model_error_and_does_not_change_the_backend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    """The transformers backend would need even more memory, for float32."""
    folder, _ = checkpoint(tmp_path)

    def lacking(_: int) -> torch.Tensor:
        raise error

    monkeypatch.setattr("paceline.kernels.native.arena._huge", lacking)
    with pytest.raises(ModelError, match=r"^'.*' cannot be held here: \S"):
        load_model(folder)


def test_rows_that_have_other_bits_together_are_seen_when_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As from a kernel compiled wrongly for some number of rows: the other backend takes the model, with a warning."""
    folder, _ = checkpoint(tmp_path)
    honest = NativeModel.score

    def wrong(self: NativeModel, step: Step, *more: Any, **options: Any) -> Scores:
        scores = honest(self, step, *more, **options)
        return replace(scores, logits=scores.logits * (1 + 1e-6)) if len(step.tokens) == 7 else scores

    monkeypatch.setattr(NativeModel, "score", wrong)
    assert not isinstance(load_model(folder), NativeModel)
    assert "other bits together" in caplog.text
    assert "other bits together" in refusal(folder)


@pytest.mark.parametrize("name", ["mlp.up_proj", "self_attn.v_proj"])
def test_weights_that_are_not_numbers_are_refused(tmp_path: Path, name: str) -> None:
    folder, _ = checkpoint(tmp_path)
    weight = load_file(folder / "model.safetensors")[f"model.layers.1.{name}.weight"]
    weight[3, 4] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        load_model(rewritten(folder, **{f"model.layers.1.{name}.weight": weight}))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_router_whose_logits_are_not_numbers_chooses_no_expert_twice(tmp_path: Path, bad: float) -> None:
    """Their results are sized for each row once per expert; and the model is refused, whatever the other experts' chances are."""
    folder, _ = checkpoint(tmp_path, "mixtral", num_local_experts=3, num_experts_per_tok=3)
    name = "model.layers.1.block_sparse_moe.gate.weight"
    router = load_file(folder / "model.safetensors")[name]
    router[1] = bad
    with pytest.raises(ModelError, match="not finite"):
        load_model(rewritten(folder, **{name: router}))


_NARROW_TOLERANCE = 1e-2
"""With rounded activations a value near a rounding boundary may go either way, and so may later keys and values: in these
models noise of 2**-17 of every activation moves logits by as much, noise of 2**-24 by half of it.
"""
_TOLERANCES = {
    "fp32": TOLERANCE,
    "fp16": HALVES_TOLERANCE,
    "bf16": _NARROW_TOLERANCE if laid_as(FORMS["bf16"]) == HALVES_AND_REST else HALVES_TOLERANCE,
    "w16a16": 0.1,
    "int8": _NARROW_TOLERANCE,
    "int4": _NARROW_TOLERANCE,
    "w8a8": 0.5,
    "w4a8": 0.5,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_keep_their_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    """The weights equal those of the file exactly; keys and values are float16, and everything else float32 except inputs of a
    matrix unit."""
    folder, reference = checkpoint(tmp_path)
    halves = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    rewritten(folder, **halves)
    reference.load_state_dict({name: tensor.float() for name, tensor in halves.items()}, strict=False)
    model = native(folder)
    assert model.weights == {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    read_as(reference, model.weights)
    assert largest_error(model, with_half_keys(reference)) < _TOLERANCES[model.weights]


def read_as(reference: Any, weights: Any) -> None:
    """Make every linear layer round its inputs like the kernels of a format."""
    for module in reference.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: (as_read(inputs[0], FORMS[weights]),))


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize(("kind", "over"), [("llama", {"hidden_size": 88, "attention_bias": True}), ("phi3", {}), ("gemma2", {})])
def test_a_format_is_the_model_of_the_weights_it_stands_for(
    tmp_path: Path, kind: str, over: dict[str, Any], weights: str
) -> None:
    """`weights` defines the target: the same network with rounded matrices. Besides these only inputs of integer products and of
    matrix units are rounded, and keys and values, to float16, if weights are narrower than float32."""
    folder, reference = checkpoint(tmp_path, kind, **over)
    model, form = native(folder, weights), FORMS[weights]
    with torch.no_grad():
        for module in reference.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(represented(module.weight, form))
        if not form.scaled:
            embedding = reference.get_input_embeddings().weight
            embedding.copy_(represented(embedding, form))
    read_as(reference, weights)
    assert model.weights == weights
    if weights != "fp32":
        with_half_keys(reference)
    assert largest_error(model, reference) < _TOLERANCES[weights]


@pytest.mark.parametrize("case", ["llama", "gemma2", "stablelm", "granite", "olmo2"])
def test_taps_are_the_hidden_states_of_transformers(tmp_path: Path, case: str) -> None:
    kind, over = CASES[case]
    folder, reference = checkpoint(tmp_path, kind, **over)
    model, owner = native(folder), sequence(0, [5, 17, 23, 42])
    cache = model.new_cache()
    tree = DraftTree.chain(42, (11, 12), "test")
    found = score(model, cache, [missing(cache, owner, tree)], taps=(0, 1, 2)).taps
    with torch.inference_mode():
        text = torch.tensor([[5, 17, 23, 42, 11, 12]])
        states = reference(input_ids=text, use_cache=False, output_hidden_states=True).hidden_states
        last = reference.model.norm(found[2])
    assert (found[0] - states[0][0, -3:]).abs().max() < 2e-5
    assert (found[1] - states[1][0, -3:]).abs().max() < 2e-5
    # transformers reports the last state after the final norm
    assert (last - states[2][0, -3:]).abs().max() < 2e-5
    again = score(model, cache, [missing(cache, owner, tree)], taps=(1,)).taps
    assert list(again) == [1]
    assert torch.equal(again[1], found[1])
    for layer in (3, -1):
        with pytest.raises(ModelError, match="layers 0 to 2"):
            score(model, cache, [missing(cache, owner, tree)], taps=(layer,))


def test_logits_are_right_beyond_the_first_rotation_table(tmp_path: Path) -> None:
    """Positions past 1024, where the tables and the slabs of a running sequence have grown."""
    over = {"max_position_embeddings": 4096, "hidden_size": 32, "head_dim": 8, "intermediate_size": 32}
    folder, reference = checkpoint(tmp_path, **over)
    model = native(folder)
    noise = torch.Generator().manual_seed(5)
    owner = sequence(0, torch.randint(3, 97, (1050,), generator=noise).tolist())
    cache = model.new_cache()
    tree = DraftTree((owner.root, 11, 12), (-1, 0, 0))
    model.logits_after([(owner, tuple(owner.tokens[:1000]))], cache)
    got = score(model, cache, [missing(cache, owner, tree)]).logits
    assert (got[0] - alone(reference, owner.tokens)[-1]).abs().max() < 2 * TOLERANCE
    assert (got[2] - alone(reference, [*owner.tokens, 12])[-1]).abs().max() < 2 * TOLERANCE
