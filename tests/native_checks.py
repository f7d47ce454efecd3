"""Checks of the native backend that its mutants must fail: trees and their caches, families, drafts.

Expected values are the logits of transformers and drafts made level by level, so no mutant is compared with itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from models.test_families import TOLERANCE, largest_error
from native import checkpoint, native, random_tree
from paceline.budget import Budget
from paceline.growth import Growth
from paceline.models.base import LanguageModel
from paceline.models.native import NativeModel
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import brush, caterpillar, optimal_tree
from stepping import accept, expected, missing, score, sequence

_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True}
_GROWING = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": 0.7}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3": ("qwen3", _WINDOWS),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 40, "final_logit_softcapping": 12.0}),
    "gemma3_text": ("gemma3_text", {}),
    "phi3": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "stablelm": ("stablelm", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "granite": ("granite", {"residual_multiplier": 0.3, "logits_scaling": 0.5, "embedding_multiplier": 3.0}),
    "olmo2": ("olmo2", {}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 16, **_EXPERTS}),
    "glm4": ("glm4", {"head_dim": 16}),
    "ministral3": ("ministral3", {"head_dim": 16, "rope_parameters": {**_GROWING, "original_max_position_embeddings": 4}}),
}


@cache
def _saved(name: str) -> tuple[Path, Any, TemporaryDirectory[str]]:
    room = TemporaryDirectory()
    kind, over = FAMILIES[name]
    # wider than the first capacity of a slab
    folder, reference = checkpoint(Path(room.name), kind, max_position_embeddings=256, **over)
    return folder, reference, room


@cache
def _loaded() -> NativeModel:
    return native(_saved("llama")[0])


def prepare() -> None:
    """Build the models that the checks use, before any code is patched."""
    _loaded()
    for name in FAMILIES:
        _saved(name)


def honest(check: Callable[[], bool]) -> Callable[[], bool]:
    """A check that also fails if the code raises one of its own errors."""

    def guarded() -> bool:
        try:
            return check()
        except (AssertionError, IndexError, RuntimeError, ValueError):
            return False

    return guarded


@honest
def native_trees() -> bool:
    """A prompt in chunks, trees across the first capacity of a slab, commits, a fork, a truncation; two sequences at a time."""
    model, reference = _loaded(), _saved("llama")[1]
    draw, cache = random.Random(0), model.new_cache()
    owners = [sequence(0, draw.choices(range(97), k=117)), sequence(1, draw.choices(range(97), k=9))]
    errors = []

    def step(nodes: int) -> None:
        trees = [random_tree(draw, owner.root, nodes, 97) for owner in owners]
        got = score(model, cache, [missing(cache, *pair) for pair in zip(owners, trees, strict=True)]).logits
        wanted = [expected(reference, owner.tokens, tree) for owner, tree in zip(owners, trees, strict=True)]
        errors.append(float((got - torch.cat(wanted)).abs().max()))
        tips = [max(range(nodes), key=tree.depth.__getitem__) for tree in trees]
        verdicts = [accept(tree, tree.path(tip), draw.randrange(97)) for tree, tip in zip(trees, tips, strict=True)]
        cache.commit(verdicts)
        for owner, verdict in zip(owners, verdicts, strict=True):
            owner.commit(verdict.tokens, ())

    step(9)
    step(12)
    step(3)
    cache.fork(1, 2)
    owners.append(sequence(2, [*owners[1].tokens[:-1], 50]))
    step(3)
    cache.truncate(0, 30)
    owners[0] = sequence(0, [*owners[0].tokens[:30], owners[0].tokens[30] - 1, 60])
    step(4)
    # compared one by one: max may skip a NaN
    return all(error < TOLERANCE for error in errors)


@honest
def native_families() -> bool:
    """Newly loaded models compute the logits of transformers."""
    for name in FAMILIES:
        folder, reference, _ = _saved(name)
        if not largest_error(native(folder), reference) < TOLERANCE:
            return False
    return True


@honest
def native_drafts() -> bool:
    """Drafts in one call equal drafts token by token, behind prompts and twice behind accepted tokens."""
    model = _loaded()
    cuts = [SamplingParams(temperature=2.0, **one) for one in ({"top_p": 0.3}, {"top_k": 2}, {"min_p": 0.5})]
    shapes = [
        SamplingParams(logit_bias={7: 100.0}),
        SamplingParams(temperature=2.0, logit_bias={7: 4.0, 9: -3.0}, repetition_penalty=1.5, top_p=0.9),
        SamplingParams(presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=0.8),
        SamplingParams(min_tokens=8, repetition_penalty=3.0),
    ]
    everyone = (SamplingParams(), SamplingParams(temperature=2.0), *cuts, *shapes)
    chains = (Growth(kind, caterpillar(6)) for kind in (Proposal.COUPLED, Proposal.IID))
    return all(_drafted_alike(model, growth, params) for growth, params in product(chains, everyone))


@honest
def native_branches() -> bool:
    """Trees drafted in one call equal those drafted level by level: fixed and dynamic shapes, every kind of proposal."""
    model, shape = _loaded(), optimal_tree((0.5, 0.3, 0.1), 9, 5)
    trees = [Growth(kind, shape) for kind in Proposal] + [Growth(width=2), Growth(shape=brush(2, 4))]
    return all(_drafted_alike(model, growth, SamplingParams(temperature=2.0)) for growth in trees)


def _drafted_alike(model: NativeModel, growth: Growth, params: SamplingParams) -> bool:
    """Whether drafts in one call equal those level by level, behind prompts and twice behind accepted tokens."""
    drafts = list[list[DraftTree]]()
    for extend in (NativeModel.extend, LanguageModel.extend):
        store = model.new_cache()
        ends = (frozenset[int](), frozenset(range(0, 60, 7)), frozenset({4}))
        owners = [Sequence(key, (5, 58 - key, *range(9 * key)), params, key, ends[key]) for key in range(3)]
        made = list[DraftTree]()
        for depths in ([4, 2, 6], [1, 3, 5], [3, 3, 3]):
            budgets = [Budget(9, depth) for depth in depths]
            trees = extend(model, owners, budgets, store, growth=growth, vocab_size=60, source="test")
            made += trees
            for owner, tree in zip(owners, trees, strict=True):
                right = [tree.tokens[node] for node in tree.first_path()[:2]]
                store.truncate(owner.key, len(owner.tokens) + len(right))
                owner.commit((*right, 9), ())
        drafts.append(made)
    return all(_alike(*those) for those in zip(*drafts, strict=True))


def _alike(one: DraftTree, other: DraftTree) -> bool:
    """Whether both are the same draft; proposals must agree within rounding, confidences are not compared."""
    if replace(one, confidences=(), proposals={}) != replace(other, confidences=(), proposals={}):
        return False
    rows = [(row, other.proposals.get(place)) for place, row in one.proposals.items()]
    return len(rows) == len(other.proposals) and all(its is not None and torch.allclose(row, its, atol=1e-6) for row, its in rows)
