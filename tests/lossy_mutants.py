"""Mutants of the lossy rules (`typical`, `relaxed`), and the check that must catch them: acceptance by their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mutants import altered, mutant, replaced
from paceline.compose import build_verifier
from paceline.params import SamplingParams
from paceline.sampling import Context
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree
from paceline.verifiers import base, relaxed, typical

SIZE, TOP_K = 6, 5
PARAMS = SamplingParams(temperature=0.7, top_k=TOP_K)
TYPICAL = [(0.09, 0.3), (0.3, 0.5)]
"""epsilon, delta"""
RELAXED = [(3, 1.0), (2, 4.0)]
"""top, gap"""


def good_enough() -> bool:
    """Checks which tokens are accepted and what `typical` emits behind them, for some rows, and the choice between paths."""
    rows = torch.randn(30, SIZE, generator=torch.Generator().manual_seed(1)) * 1.2
    return all(map(_as_the_formulas_say, rows)) and all(map(_longest, ("relaxed", "typical:epsilon=0.05")))


def _judged(rule: str, tree: DraftTree, row: torch.Tensor, params: SamplingParams = PARAMS) -> Verdict:
    sequence = Sequence(0, (0, 1, 2), params, seed=0)
    return build_verifier(rule)([sequence], [tree], [row.expand(len(tree), len(row))])[0]


def _as_the_formulas_say(row: torch.Tensor) -> bool:
    scores = row.double().numpy() / PARAMS.temperature
    scores[scores < np.sort(scores)[-TOP_K]] = -np.inf
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    ranks, some = (-probs).argsort().argsort(), probs[probs > 0]
    entropy = -(some * np.log(some)).sum()
    wanted = {f"typical:epsilon={e},delta={d}": probs > min(e, d * np.exp(-entropy)) for e, d in TYPICAL}
    wanted |= {f"relaxed:top={n},gap={gap}": (ranks < n) & (probs >= probs.max() * np.exp(-gap)) for n, gap in RELAXED}
    for rule, kept in wanted.items():
        verdicts = [_judged(rule, DraftTree.chain(2, [token], "one"), row) for token in range(SIZE)]
        if [bool(verdict.path) for verdict in verdicts] != kept.tolist():
            return False
        if rule.startswith("typical") and {verdict.tokens[-1] for verdict in verdicts} != {int(probs.argmax())}:
            return False
    return True


def _longest(rule: str) -> bool:
    """Some shorter paths are likelier, and of the three longest paths the last is the likeliest."""
    row, tree = torch.tensor([2.0, 1.9, 1.8, -5.0]), DraftTree((0, 0, 1, 2, 2, 0), (-1, 0, 0, 1, 2, 2))
    return _judged(rule, tree, row, SamplingParams(temperature=1.0)).path == (2, 5)


def _worth(patch: pytest.MonkeyPatch, rule: type[base.LongestPath], text: str, by: str) -> None:
    patch.setattr(rule, "worth", altered(rule.worth, text, by))


@mutant("good enough")
def typical_asks_for_the_larger_of_its_thresholds(patch: pytest.MonkeyPatch) -> None:
    _worth(patch, typical.Typical, "min(", "max(")


@mutant("good enough")
def typical_asks_for_more_where_the_target_is_uncertain(patch: pytest.MonkeyPatch) -> None:
    _worth(patch, typical.Typical, "np.exp(-entropy)", "np.exp(entropy)")


@mutant("good enough")
def relaxed_knows_no_gap(patch: pytest.MonkeyPatch) -> None:
    _worth(patch, relaxed.Relaxed, "self.options.gap", "np.inf")


@mutant("good enough")
def relaxed_knows_no_ranks(patch: pytest.MonkeyPatch) -> None:
    _worth(patch, relaxed.Relaxed, "[: self.options.top]", "")


@mutant("good enough")
def what_is_good_enough_knows_no_temperature(patch: pytest.MonkeyPatch) -> None:
    honest = base.distribution

    def lossy(logits: torch.Tensor, context: Context) -> np.ndarray:
        return honest(logits, Context(replaced(context.sequence, temperature=1.0), context.ancestors))

    patch.setattr(base, "distribution", lossy)


@mutant("good enough")
def of_paths_that_are_good_enough_the_likeliest_is_taken(patch: pytest.MonkeyPatch) -> None:
    honest = base.LongestPath.longest
    likeliest = "key=lambda node: totals[node] if node else -np.inf"
    patch.setattr(base.LongestPath, "longest", altered(honest, "key=rank", likeliest))


@mutant("good enough")
def of_paths_of_one_length_the_first_is_taken(patch: pytest.MonkeyPatch) -> None:
    honest = base.LongestPath.longest
    patch.setattr(base.LongestPath, "longest", altered(honest, "key=rank", "key=lambda node: rank(node)[0]"))
