"""Drives a LanguageModel and its cache by hand, and computes the expected logits with the plain model."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import torch

from paceline.cache.base import KVCache
from paceline.models.base import LanguageModel, Scores
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree


class NeverEnds:
    """A stop checker that cuts nothing."""

    def cut(self, sequence: Sequence, verdict: Verdict) -> Verdict:
        return verdict


def sequence(key: int, tokens: Many[int]) -> Sequence:
    return Sequence(key, tuple(tokens), SamplingParams(), seed=key)


@torch.inference_mode()
def alone(model: Any, tokens: Many[int]) -> torch.Tensor:
    """float32 [n, V]: logits of the unwrapped model reading all of `tokens` at once, without a cache."""
    return model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].float()


def missing(cache: KVCache, owner: Sequence, tree: DraftTree | None = None, upto: int | None = None) -> Feed:
    """Feeds the tokens missing in the cache, of the first `upto` committed ones (default: all), and the tree below the last."""
    start = cache.length(owner.key)
    return Feed(owner, start, tuple(owner.tokens[start:upto]), tree)


def score(model: LanguageModel, cache: KVCache, feeds: Many[Feed], taps: Many[int] = ()) -> Scores:
    step = Step.of(feeds)
    cache.stage(step)
    return model.score(step, cache, taps)


def accept(tree: DraftTree, path: Many[int], then: int) -> Verdict:
    """The verdict that keeps `path` and emits `then` after it."""
    return Verdict(tuple(path), (*(tree.tokens[node] for node in path), then), len(path))


def expected(model: Any, committed: Many[int], tree: DraftTree) -> torch.Tensor:
    """float32 [N, V]: per node, the logits after `committed` (which ends with the root) and the path to that node."""
    return torch.stack(
        [alone(model, [*committed, *(tree.tokens[step] for step in tree.path(node))])[-1] for node in range(len(tree))]
    )
