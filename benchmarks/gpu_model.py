"""A model in the shape of Llama-3-8B, with random weights."""

from __future__ import annotations

import torch
from transformers import LlamaConfig

HIDDEN, HEADS, KV_HEADS, DIM, MLP, VOCABULARY = 4096, 32, 8, 128, 14336, 128256


class RandomTensors:
    """A checkpoint in Llama-3-8B's shape without files: every tensor is drawn at random when it is read."""

    def __init__(self, layers: int, longest: int, device: torch.device) -> None:
        self.config = LlamaConfig(
            hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM, intermediate_size=MLP,
            vocab_size=VOCABULARY, num_hidden_layers=layers, rms_norm_eps=1e-5, max_position_embeddings=longest,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        )  # fmt: skip
        self.kinds = {"model.embed_tokens.weight": "BF16"}
        self.unread = frozenset[str]()
        self._device = device
        heads, keys = HEADS * DIM, KV_HEADS * DIM
        self._shapes = {
            "embed_tokens": (VOCABULARY, HIDDEN), "lm_head": (VOCABULARY, HIDDEN), "q_proj": (heads, HIDDEN),
            "k_proj": (keys, HIDDEN), "v_proj": (keys, HIDDEN), "o_proj": (HIDDEN, heads), "gate_proj": (MLP, HIDDEN),
            "up_proj": (MLP, HIDDEN), "down_proj": (HIDDEN, MLP),
        }  # fmt: skip

    def find(self, name: str) -> torch.Tensor:
        module = name.split(".")[-2]
        if module not in self._shapes:
            return torch.ones(HIDDEN, dtype=torch.bfloat16, device=self._device)
        weight = torch.empty(self._shapes[module], dtype=torch.bfloat16, device=self._device)
        return weight.normal_(std=1.0 if module == "embed_tokens" else weight.shape[1] ** -0.5)
