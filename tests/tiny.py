"""Tiny random models for tests: every family in seconds, with attention that matters and logits far from ties.

A freshly initialised model is nearly uniform and nearly blind to its context, so a wrong mask or a lossy verifier would
pass. Here weights are redrawn at a scale where attention decides, and the output layer is sharpened.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.models.attention import NAME
from paceline.models.hub import HubModel

VOCABULARY = 97
CONTEXT = 128
BOS, EOS = 1, 2

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_MIXED: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}
_GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 4},
    "gemma2": {**_MIXED, "attn_logit_softcapping": 5.0},
    "gemma3_text": _MIXED,
    "phi3": {},
    "phi": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "gpt2": _GPT,
    "mixtral": _EXPERTS,
    "deepseek_v3": {**_EXPERTS, **_LATENT},
    "deepseek_v32": {**_EXPERTS, **_LATENT, "index_n_heads": 2, "index_head_dim": 16},
    "gpt_oss": {**_MIXED, **_EXPERTS},
    "afmoe": {**_MIXED, **_EXPERTS, "num_dense_layers": 1, "num_experts": 4},
    "falcon": {"alibi": False, "new_decoder_architecture": False},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1]],
        "num_layers": 2,
        "num_heads": 4,
        "window_size": 4,
    },
    "gptj": {**_GPT, "rotary_dim": 8},
    "codegen": {**_GPT, "rotary_dim": 8},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": CONTEXT},
    "qwen3_next": {
        **_EXPERTS,
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "shared_expert_intermediate_size": 32,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "longcat_flash": {
        **{name: number for name, number in _LATENT.items() if name not in ("n_group", "topk_group", "first_k_dense_replace")},
        "num_hidden_layers": 4,
        "ffn_hidden_size": 48,
        "moe_topk": 2,
        "zero_expert_num": 2,
        "expert_ffn_hidden_size": 32,
        "head_dim": 8,
        "n_routed_experts": 4,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 1, "expand": 2, "chunk_size": 8},
}
"""Configuration overrides of each family, on top of `_SMALL`."""


def tiny_config(kind: str, **over: Any) -> Any:
    """A transformers configuration of two small layers; `over` wins over everything."""
    return AutoConfig.for_model(kind, **{**_SMALL, **KINDS.get(kind, {}), **over})


def tiny_model(kind: str, seed: int = 0, *, sharpness: float = 3.0, **over: Any) -> Any:
    """A float32 causal LM in eval mode with its own eager attention: the reference of tests."""
    config = tiny_config(kind, **over)
    implementation = {} if kind == "mamba2" else {"attn_implementation": "eager"}
    with torch.random.fork_rng(devices=[]):
        # anything `redraw` leaves in place, such as the time constants of a recurrent layer, is drawn by the constructor
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, **implementation).float().eval()
    redraw(model, seed, sharpness)
    return model.requires_grad_(False)


def redraw(model: torch.nn.Module, seed: int, sharpness: float = 3.0) -> None:
    """Give every parameter new values: matrices at 1.5 / sqrt(width), vectors a little noise, the output layer sharpened."""
    noise = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings().weight  # pyright: ignore[reportCallIssue]
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float32)
            if parameter.dim() > 1:
                parameter.copy_(drawn * 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(drawn * 0.1)
        head.mul_(sharpness)


def perturb(model: torch.nn.Module, seed: int, amount: float) -> None:
    """Add noise of `amount` times its own scale to every matrix: makes, from a target, a draft that often agrees with it."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float32)
                parameter.add_(drawn * amount * parameter.std())


def tiny_hub(kind: str = "llama", seed: int = 0, *, disturbed: float = 0.0, **over: Any) -> HubModel:
    """A tiny model behind the engine's contract. `disturbed` > 0 makes a draft of the model with the same seed."""
    model = tiny_model(kind, seed, **over)
    if disturbed:
        perturb(model, seed + 1, disturbed)
    return as_hub(model, kind)


def as_hub(reference: Any, name: str = "tiny") -> HubModel:
    """A copy of `reference` as the engine's model; `reference` itself is unchanged."""
    model = AutoModelForCausalLM.from_config(copy.deepcopy(reference.config), attn_implementation=NAME).eval()
    model.load_state_dict(reference.state_dict())
    context = reference.config.get_text_config().max_position_embeddings
    return HubModel(model.requires_grad_(False), name, context)


CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE with three merges; ids 0, 1, 2 are <unk>, <s>, </s>. Encoding puts <s> in front."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("i", "n")]
    pieces = ["<unk>", "<s>", "</s>", *alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(r"\s?\S+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def save_tokenizer(folder: Path, chat_template: str | None = CHAT_TEMPLATE) -> int:
    """Write tokenizer.json and tokenizer_config.json; returns the vocabulary size."""
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()


def save_tiny(
    folder: Path | str,
    seed: int = 0,
    *,
    kind: str = "llama",
    disturbed: float = 0.0,
    chat_template: str | None = CHAT_TEMPLATE,
    **over: Any,
) -> Path:
    """Write a complete checkpoint (safetensors, configuration, byte-level tokenizer) that `load_model` accepts.

    `disturbed` > 0 gives a draft for the checkpoint of the same seed and options: equal weights plus that much noise.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    size = save_tokenizer(folder, chat_template)
    model = tiny_model(kind, seed, **{"vocab_size": size, **over})
    if disturbed:
        perturb(model, seed + 1, disturbed)
    model.save_pretrained(folder)
    return folder
