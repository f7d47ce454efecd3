"""The shapes of target and draft (Llama form), and their initial weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class Shape:
    """Sizes of one model; the head dimension is hidden / heads."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int


def build_model(shape: Shape, vocab_size: int, context_tokens: int, end_token: int, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model, the same for the same seed."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_token,
        pad_token_id=end_token,
        use_cache=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("sdpa")
    # Blocks start as the identity: Muon's steps have a fixed size, so initial noise would first have to be unlearned.
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(parameter)
    return model
