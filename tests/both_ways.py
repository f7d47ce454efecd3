"""Compares drafts of a native model made in one compiled call with the same drafts made level by level, and both caches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paceline.budget import Budget
from paceline.cache.panels import PanelCache
from paceline.growth import Growth
from paceline.models.base import LanguageModel
from paceline.models.native import NativeModel
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.stopping import Stopping
from paceline.tree import DraftTree
from paceline.tree_shapes import caterpillar

CHAIN = Growth(shape=caterpillar(16))


class Both:
    """Drafts the same in one call (`fast`) and level by level (`slow`), each with a cache of its own, and compares them."""

    def __init__(self, model: NativeModel, vocab_size: int = 97) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.fast, self.slow = model.new_cache(), model.new_cache()

    def extend(
        self,
        owners: list[Sequence],
        depths: list[int],
        growth: Growth = CHAIN,
        floor: float = 0.0,
        rules: list[Stopping | None] | None = None,
        nodes: int = 99,
    ) -> list[DraftTree]:
        budgets = [Budget(nodes, depth, floor, rule) for depth, rule in zip(depths, rules or [None] * len(depths), strict=True)]
        options = {"growth": growth, "vocab_size": self.vocab_size, "source": "test"}
        got = self.model.extend(owners, budgets, self.fast, **options)
        wanted = LanguageModel.extend(self.model, owners, budgets, self.slow, **options)
        for one, other in zip(got, wanted, strict=True):
            assert replace(one, proposals={}) == replace(other, confidences=one.confidences, proposals={})
            assert one.proposals.keys() == other.proposals.keys()
            assert all(torch.allclose(probs, other.proposals[place], atol=1e-6) for place, probs in one.proposals.items())
            assert one.confidences[1:] == pytest.approx(other.confidences[1:], rel=1e-3, abs=1e-5)
        held = [self.fast.length(owner.key) for owner in owners]
        assert held == [self.slow.length(owner.key) for owner in owners]
        for owner, length in zip(owners, held, strict=True):
            for a, b in zip(self.contents(self.fast, owner.key), self.contents(self.slow, owner.key), strict=True):
                assert torch.equal(a[..., :length], b[..., :length])
        return got

    def contents(self, cache: PanelCache, key: int) -> list[torch.Tensor]:
        """Keys and values, each [..., slots]."""
        if cache.length(key) == 0:
            return []
        slab, size = cache.slab(key), cache.shape.size
        keys, values = torch.from_numpy(slab.keys), torch.from_numpy(slab.values)
        return [keys.permute(0, 1, 3, 2, 4).flatten(-2), values.permute(0, 1, 2, 4, 3).flatten(2, 3)[:, :, :size]]

    def back(self, owner: Sequence, length: int) -> None:
        self.fast.truncate(owner.key, length)
        self.slow.truncate(owner.key, length)


def owners_of(params: SamplingParams, lengths: list[int]) -> list[Sequence]:
    noise = torch.Generator().manual_seed(1)
    return [
        Sequence(key, tuple(torch.randint(97, (length,), generator=noise).tolist()), params, seed=7 + key)
        for key, length in enumerate(lengths)
    ]
