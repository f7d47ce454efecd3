"""Held-out loss per domain, and how well the draft predicts the target."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from paceline.zoo.pack import IGNORED

BATCH_DOCUMENTS = 16


@dataclass(frozen=True)
class Measured:
    """Means over the predicted tokens of one domain's held-out documents, each read from position 0."""

    tokens: int
    target_loss: float
    """Nats per token."""
    draft_loss: float
    """Nats per token."""
    same_argmax: float
    """Share of positions where both models' most likely token is the same."""
    acceptance: float
    """Mean of sum over x of min(target_probs, proposal_probs): one-token acceptance when sampling."""

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def padded(documents: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets [B, T] of documents of unequal length."""
    width = max(len(document) for document in documents) - 1
    inputs = torch.full((len(documents), width), pad)
    targets = torch.full((len(documents), width), IGNORED)
    for row, document in enumerate(documents):
        inputs[row, : len(document) - 1] = torch.tensor(document[:-1])
        targets[row, : len(document) - 1] = torch.tensor(document[1:])
    return inputs, targets


@torch.no_grad()
def measure(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: Tokenizer,
    documents: list[str],
    end_token: int,
    most_tokens: int = 16_000,
) -> Measured:
    """Measure on a fixed random sample of `documents`, about `most_tokens` of it, in float32."""
    context = target.config.max_position_embeddings
    chosen: list[list[int]] = []
    for text in random.Random(0).sample(documents, len(documents)):
        if sum(len(document) for document in chosen) >= most_tokens:
            break
        ids = [*tokenizer.encode(text, add_special_tokens=False).ids, end_token][: context + 1]
        if len(ids) > 1:
            chosen.append(ids)
    chosen.sort(key=len)
    sums = torch.zeros(4, dtype=torch.float64)
    count = 0
    for start in range(0, len(chosen), BATCH_DOCUMENTS):
        inputs, targets = padded(chosen[start : start + BATCH_DOCUMENTS], end_token)
        is_real = targets != IGNORED
        target_log = target(input_ids=inputs).logits[is_real].log_softmax(-1)
        draft_log = draft(input_ids=inputs).logits[is_real].log_softmax(-1)
        answer = targets[is_real][:, None]
        sums += torch.stack(
            [
                -target_log.gather(-1, answer).sum(),
                -draft_log.gather(-1, answer).sum(),
                (target_log.argmax(-1) == draft_log.argmax(-1)).sum(),
                torch.minimum(target_log, draft_log).exp().sum(),
            ]
        ).double()
        count += int(is_real.sum())
    return Measured(count, *(sums / count).tolist())
