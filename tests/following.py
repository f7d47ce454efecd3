"""Steps a drafter along a text known in advance, as if that text were the target's: what it drafts in every step."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from paceline.budget import Budget
from paceline.drafters.base import Drafter
from paceline.models.base import Scores
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree


def request(prompt: Many[int], reference: Many[int] = (), key: int = 0, stop_ids: Many[int] = (0,)) -> Sequence:
    return Sequence(key, tuple(prompt), SamplingParams(), 0, frozenset(stop_ids), tuple(reference))


def proposed(drafter: Drafter, sequence: Sequence, budget: Budget | None = None) -> DraftTree:
    return drafter.propose([sequence], [budget or drafter.budget])[0]


def step(drafter: Drafter, sequence: Sequence, answer: Many[int]) -> tuple[DraftTree, int]:
    """One step towards `answer`: the draft, and how many tokens were emitted."""
    tree = proposed(drafter, sequence)
    path: list[int] = []
    tokens: list[int] = []
    for token in answer[sequence.generated_tokens :]:
        tokens.append(token)
        child = tree.children[path[-1] if path else 0].get(token)
        if child is None:
            break
        path.append(child)
    verdict = Verdict(tuple(path), tuple(tokens), len(path))
    sequence.commit(verdict.tokens, ("",) * len(tokens))
    drafter.observe([sequence], [tree], [verdict], Scores(torch.zeros(0)))
    return tree, len(tokens)


def steps(drafter: Drafter, sequence: Sequence, answer: Many[int]) -> list[tuple[DraftTree, int]]:
    """All steps to the end of `answer`."""
    taken = []
    while sequence.generated_tokens < len(answer):
        taken.append(step(drafter, sequence, answer))
    return taken


def tau(taken: list[tuple[DraftTree, int]]) -> float:
    return sum(emitted for _, emitted in taken) / len(taken)


def rows(taken: list[tuple[DraftTree, int]]) -> int:
    """Tokens drafted over all steps."""
    return sum(len(tree) - 1 for tree, _ in taken)
