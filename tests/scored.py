"""Steps one drafter with a target and records the target's logits: for drafters that learn from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.budget import Budget
from paceline.drafters.base import Drafter
from paceline.models.base import LanguageModel
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree
from paceline.union import union
from paceline.verifiers.match import Match
from stepping import missing, score

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.0)


def request(tokens: list[int], params: SamplingParams = GREEDY, key: int = 0, seed: int = 5) -> Sequence:
    return Sequence(key, tuple(tokens), params, seed)


@dataclass
class Taken:
    """One step: the drafter's proposal, the tree the target saw, its logits, and the verdict."""

    proposed: DraftTree
    seen: DraftTree
    logits: torch.Tensor
    verdict: Verdict


class Run:
    """A request in progress. `beside`, per step: another drafter's tree, placed first; `room`: most nodes the target sees."""

    def __init__(self, drafter: Drafter, model: LanguageModel, owner: Sequence) -> None:
        self.drafter, self.model, self.owner = drafter, model, owner
        self.cache = model.new_cache()

    def step(self, budget: Budget | None = None, beside: DraftTree | None = None, room: int = 999) -> Taken:
        owner = self.owner
        proposed = self.drafter.propose([owner], [budget or self.drafter.budget])[0]
        seen = union(beside or DraftTree.root(owner.root), proposed).first(room)
        scores = score(self.model, self.cache, [missing(self.cache, owner, seen)])
        verdict = Match()([owner], [seen], [scores.logits[: seen.candidates]])[0]
        self.cache.commit([verdict])
        owner.commit(verdict.tokens, ("",) * len(verdict.tokens))
        self.drafter.observe([owner], [seen], [verdict], scores)
        return Taken(proposed, seen, scores.logits, verdict)
