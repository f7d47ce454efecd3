"""Training losses: next-token cross-entropy for the target, distillation for the draft."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from paceline.zoo.pack import IGNORED

Loss = Callable[[Tensor, Tensor], Tensor]
"""Inputs and targets [B, T] to a mean loss in nats per token."""


def logits(model: LlamaForCausalLM, inputs: Tensor) -> Tensor:
    """[B, T] tokens to [B, T, V] logits; bfloat16 products with float32 master weights."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        return model.lm_head(hidden)


def next_token_loss(model: LlamaForCausalLM) -> Loss:
    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        scores = logits(model, inputs).float()
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    return loss


def distillation_loss(draft: LlamaForCausalLM, target: LlamaForCausalLM, data_share: float) -> Loss:
    """Cross-entropy against the target's whole distribution, mixed with `data_share` of cross-entropy against the data's token.

    With `data_share` 0 this is KL(target || draft) up to a constant, which is least when both distributions are equal.
    """

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            target_probs = logits(target, inputs).float().softmax(-1)
        scores = logits(draft, inputs).float()
        log_probs = scores.log_softmax(-1)
        soft = -(target_probs * log_probs).sum(-1)
        is_real = targets != IGNORED
        hard = -log_probs.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
        each = (1 - data_share) * soft + data_share * hard
        return (each * is_real).sum() / is_real.sum()

    return loss
