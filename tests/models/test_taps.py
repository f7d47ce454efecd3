"""Taps equal the hidden states that transformers reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.cache.base import Branching
from paceline.models.base import LanguageModel, ModelError
from paceline.models.stateful import ReplayModel, StatefulModel
from paceline.models.taps import decoder_layers
from paceline.tree import DraftTree
from stepping import missing, score, sequence
from tiny import as_hub, tiny_model

PROMPT = [5, 17, 23, 42, 8, 61, 30]
NORMS = {"llama": "model.norm", "gemma2": "model.norm", "gpt2": "transformer.ln_f", "gpt_neox": "gpt_neox.final_layer_norm"}


def backend(kind: str, reference: Any) -> LanguageModel:
    if kind == "falcon":
        return StatefulModel(reference, kind, 128, Branching.TREE)
    return ReplayModel(reference, kind, 128) if kind == "lfm2" else as_hub(reference)


@torch.inference_mode()
def reported(model: Any, tokens: list[int]) -> tuple[torch.Tensor, ...]:
    states = model(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
    return tuple(state[0] for state in states)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral", "deepseek_v3", "gpt2", "gpt_neox", "opt", "falcon", "lfm2"])
def test_taps_equal_the_reported_hidden_states(kind: str) -> None:
    reference = tiny_model(kind)
    model, owner = backend(kind, reference), sequence(0, PROMPT)
    cache = model.new_cache()
    tree = DraftTree.chain(PROMPT[-1], (11, 12), "test")
    taps = score(model, cache, [missing(cache, owner, tree)], taps=(0, 1)).taps
    states = reported(reference, [*PROMPT, 11, 12])
    for layer in (0, 1):
        assert taps[layer].shape == (3, 64)
        assert (taps[layer] - states[layer][-3:]).abs().max() < 2e-5


@pytest.mark.parametrize("kind", NORMS)
def test_the_last_tap_lacks_only_the_final_norm(kind: str) -> None:
    reference = tiny_model(kind)
    model, owner = as_hub(reference), sequence(0, PROMPT)
    cache = model.new_cache()
    taps = score(model, cache, [missing(cache, owner, DraftTree.root(PROMPT[-1]))], taps=(2,)).taps
    with torch.inference_mode():
        normed = reference.get_submodule(NORMS[kind])(taps[2])
    assert (normed - reported(reference, PROMPT)[-1][-1:]).abs().max() < 2e-5


def test_a_model_in_use_carries_no_hooks() -> None:
    model, owner = as_hub(tiny_model("llama")), sequence(0, PROMPT)
    cache = model.new_cache()
    score(model, cache, [missing(cache, owner, DraftTree.root(PROMPT[-1]))], taps=(0, 2))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in decoder_layers(model.model))


def test_a_layer_that_is_not_there_cannot_be_tapped() -> None:
    model, owner = as_hub(tiny_model("llama")), sequence(0, PROMPT)
    cache = model.new_cache()
    with pytest.raises(ModelError, match="layers 0 to 2"):
        score(model, cache, [missing(cache, owner)], taps=(3,))
