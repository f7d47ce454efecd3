"""Every family through its backend: many sequences in one step, with drafts, equal the plain model run alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.cache.base import Branching
from paceline.models.base import LanguageModel
from paceline.models.selfcheck import Identity, best_backend
from paceline.models.stateful import ReplayModel, StatefulModel
from paceline.step import Verdict
from paceline.tree import DraftTree
from stepping import accept, alone, expected, missing, score, sequence
from tiny import VOCABULARY, as_hub, tiny_model

ROUTED = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3_text",
    "phi3",
    "phi",
    "gpt_neox",
    "opt",
    "gpt2",
    "mixtral",
    "deepseek_v3",
    "gpt_oss",
    "afmoe",
]
_WINDOWS: dict[str, Any] = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    (
        "granite",
        {"residual_multiplier": 0.5, "logits_scaling": 0.8, "attention_multiplier": 0.3, "embedding_multiplier": 3.0},
    ),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("cohere", {"logit_scale": 1.5, "use_qk_norm": True}),
    ("cohere2", {"logit_scale": 1.5, "head_dim": 16, **_WINDOWS}),
    ("olmo", {"clip_qkv": 0.5}),
    ("olmo2", {"attention_bias": True}),
    ("olmo3", _WINDOWS),
    ("smollm3", {"no_rope_layers": [1, 0]}),
    ("starcoder2", {"sliding_window": 3, "use_bias": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"scale_attn_weights": False}),
    ("gpt_neox", {"use_parallel_residual": False, "rotary_pct": 0.5}),
    ("phi", {"partial_rotary_factor": 0.25, "qk_layernorm": True}),
    ("glm4", {"head_dim": 16, "partial_rotary_factor": 0.5}),
    ("exaone4", _WINDOWS),
    ("mixtral", {"sliding_window": 3}),
]
"""Configuration settings that models of the transformers backend publish, with values other than the defaults."""
ADDITIVE = ["falcon", "gptj", "codegen"]
CHAINS = ["bloom", "mpt", "gpt_neo", "longcat_flash"]
REPLAYED = ["qwen3_next", "lfm2", "mamba2"]
TOLERANCE = 1e-4
"""Largest difference of a logit; logits range over tens."""
RECURRENT_TOLERANCE = 1e-3
"""Recurrent layers sum a prompt in blocks and single tokens in two different kernels: transformers itself, with its cache and
without, differs by 1.0e-4 on this qwen3_next."""


def allowed(model: LanguageModel) -> float:
    return RECURRENT_TOLERANCE if model.branching is Branching.REPLAY else TOLERANCE


def branching_draft(root: int) -> tuple[DraftTree, tuple[int, ...]]:
    """Five drafted nodes, and a path through them whose cache slots are not adjacent."""
    return DraftTree((root, 11, 12, 13, 14, 15), (-1, 0, 0, 1, 1, 2)), (2, 5)


def straight_draft(root: int) -> tuple[DraftTree, tuple[int, ...]]:
    return DraftTree.chain(root, (11, 12, 13), "test"), (1, 2)


def largest_error(model: LanguageModel, reference: Any) -> float:
    """Three sequences: a prompt in two chunks, a plain decode, a draft; then a commit, and one more step of each."""
    noise = torch.Generator().manual_seed(3)
    prompts = [torch.randint(16, VOCABULARY, (n,), generator=noise).tolist() for n in (11, 9, 10)]
    chunked, plain, drafted = (sequence(key, prompt) for key, prompt in enumerate(prompts))
    cache = model.new_cache()
    nothing = score(
        model, cache, [missing(cache, chunked, upto=5), missing(cache, plain, upto=8), missing(cache, drafted, upto=9)]
    )
    assert nothing.logits.shape == (0, model.vocab_size)
    cache.commit([Verdict()] * 3)

    draft = branching_draft if model.branching is Branching.TREE else straight_draft
    tree, path = draft(drafted.root)
    roots = [DraftTree.root(chunked.root), DraftTree.root(plain.root)]
    feeds = [missing(cache, chunked, roots[0]), missing(cache, plain, roots[1]), missing(cache, drafted, tree)]
    got = score(model, cache, feeds).logits
    wanted = torch.cat(
        [alone(reference, prompts[0])[-1:], alone(reference, prompts[1])[-1:], expected(reference, prompts[2], tree)]
    )
    errors = [got - wanted]
    verdicts = [accept(roots[0], (), 20), accept(roots[1], (), 21), accept(tree, path, 22)]
    cache.commit(verdicts)

    owners = (chunked, plain, drafted)
    for owner, verdict in zip(owners, verdicts, strict=True):
        owner.commit(verdict.tokens, ())
    trees = [draft(owner.root)[0] for owner in owners]
    got = score(model, cache, [missing(cache, owner, tree) for owner, tree in zip(owners, trees, strict=True)]).logits
    errors.append(got - torch.cat([expected(reference, owner.tokens, tree) for owner, tree in zip(owners, trees, strict=True)]))
    return float(torch.cat(errors).abs().max())


@pytest.mark.parametrize("kind", ROUTED)
def test_routed_families_branch_in_the_flat_step(kind: str) -> None:
    reference = tiny_model(kind)
    model = as_hub(reference)
    assert largest_error(model, reference) < TOLERANCE
    assert model.attention_calls == reference.config.num_hidden_layers


@pytest.mark.parametrize(("kind", "words"), SETTINGS)
def test_settings_of_a_configuration_are_applied(kind: str, words: dict[str, Any]) -> None:
    reference = tiny_model(kind, **words)
    assert largest_error(as_hub(reference), reference) < TOLERANCE


@pytest.mark.parametrize("kind", ADDITIVE)
def test_additive_masks_carry_trees(kind: str) -> None:
    reference = tiny_model(kind)
    assert largest_error(StatefulModel(reference, kind, 128, Branching.TREE), reference) < TOLERANCE


def test_gpt_neo_branches_where_every_layer_looks_everywhere() -> None:
    reference = tiny_model("gpt_neo", attention_types=[[["global"], 2]])
    assert largest_error(StatefulModel(reference, "gpt_neo", 128, Branching.TREE), reference) < TOLERANCE


@pytest.mark.parametrize("kind", CHAINS)
def test_families_bound_to_slots_take_chains(kind: str) -> None:
    reference = tiny_model(kind)
    assert largest_error(StatefulModel(reference, kind, 128, Branching.CHAIN), reference) < TOLERANCE


@pytest.mark.parametrize("kind", REPLAYED)
def test_recurrent_families_replay(kind: str) -> None:
    reference = tiny_model(kind)
    assert largest_error(ReplayModel(reference, kind, 128), reference) < RECURRENT_TOLERANCE


@pytest.mark.parametrize("kind", ["bloom", "qwen3_next"])
def test_models_that_cannot_branch_say_so(kind: str) -> None:
    reference = tiny_model(kind)
    backend = ReplayModel(reference, kind, 128) if kind == "qwen3_next" else StatefulModel(reference, kind, 128, Branching.CHAIN)
    cache, owner = backend.new_cache(), sequence(0, [5, 6, 7])
    tree, _ = branching_draft(7)
    with pytest.raises(ValueError, match="first_chain"):
        score(backend, cache, [missing(cache, owner, tree)])
    chain = tree.first_chain()
    assert chain.tokens == (7, 11, 13)
    got = score(backend, cache, [missing(cache, owner, chain)]).logits
    assert (got - expected(reference, owner.tokens, chain)).abs().max() < allowed(backend)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "falcon", "bloom", "qwen3_next", "lfm2", "mamba2", "mamba"])
def test_forks_part_ways_and_abandoned_steps_leave_no_trace(kind: str) -> None:
    """With the real states: a step never committed, a fork, a truncated fork that continues differently, then both again."""
    reference = tiny_model(kind)
    model = best_backend(tiny_model(kind), Identity(kind, 128, frozenset()))
    cache, first = model.new_cache(), sequence(0, [21, 34, 55, 89, 13, 8])
    score(model, cache, [missing(cache, first, upto=4)])
    score(model, cache, [missing(cache, first)])
    cache.commit([Verdict()])
    assert cache.length(0) == 6
    first.commit((7,), ())
    score(model, cache, [missing(cache, first, DraftTree.chain(7, (11, 12), "test"))])

    cache.fork(0, 1)
    cache.truncate(1, 4)
    second = sequence(1, [21, 34, 55, 89, 40, 41, 42])
    owners = (first, second)
    for _ in range(2):
        trees = [straight_draft(owner.root)[0] for owner in owners]
        got = score(model, cache, [missing(cache, owner, tree) for owner, tree in zip(owners, trees, strict=True)]).logits
        wanted = torch.cat([expected(reference, owner.tokens, tree) for owner, tree in zip(owners, trees, strict=True)])
        assert (got - wanted).abs().max() < allowed(model)
        verdicts = [accept(tree, (1,), 30) for tree in trees]
        cache.commit(verdicts)
        for owner, verdict in zip(owners, verdicts, strict=True):
            owner.commit(verdict.tokens, ())
    assert cache.held_bytes > 0
    cache.release(0)
    cache.release(1)
    assert cache.held_bytes == 0
