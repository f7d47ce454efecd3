"""Further checks of `check`: verifiers on four tokens, and drafted tokens against their recorded distributions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commandline import save_pair
from paceline import LLM, SamplingParams
from paceline.compose import build_verifier
from paceline.engine import small_law
from paceline.engine.check import law_of, small_fits, verdict
from paceline.engine.law import draws
from paceline.engine.small_law import small_fit, small_kinds
from paceline.methods import described
from paceline.registry import DRAFTERS, VERIFIERS
from paceline.tree import Proposal
from paceline.trials import Group, Trials, ratio, without
from paceline.verifiers.base import Exactness, NodeByNode

LAW = [row.example for row in VERIFIERS.values() if Exactness.LAW in build_verifier(row.example).exactness.values()]
ALARM = 1e-6


@pytest.mark.parametrize("rule", LAW)
def test_rules_that_keep_the_law_pass_the_check_on_four_tokens(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_law, "DRAFTS", 2048)
    verifier = build_verifier(rule)
    kinds = small_kinds(verifier)
    assert Proposal.POINT in kinds
    assert Proposal.COUPLED not in kinds
    assert set(kinds) <= {*verifier.prefers, Proposal.POINT}
    assert all(small_fit(verifier, kind, ALARM).holds for kind in kinds)


class Residual(NodeByNode):
    """Removes the rejected token from the target's distribution, as if it had not been drawn."""

    name = "residual"
    prefers = (Proposal.IID, Proposal.POINT)

    def tested(self, target_probs: np.ndarray, group: Group) -> Trials:
        for node, token in zip(group.nodes, group.tokens, strict=True):
            proposal_probs = group.proposal_probs
            chance = float(target_probs[token]) if proposal_probs is None else ratio(target_probs, proposal_probs, token)
            yield node, min(chance, 1.0)
            target_probs = without(target_probs, token)
        return target_probs


class Generous(NodeByNode):
    """Accepts slightly too often."""

    name = "generous"
    prefers = (Proposal.IID, Proposal.POINT)

    def tested(self, target_probs: np.ndarray, group: Group) -> Trials:
        steps = super().tested(target_probs, group)
        while True:
            try:
                node, chance = next(steps)
            except StopIteration as ended:
                return ended.value
            yield node, chance**0.9


@pytest.mark.parametrize("verifier", [Residual(), Generous()])
def test_rules_that_break_the_law_fail_the_check_on_four_tokens(verifier: NodeByNode) -> None:
    """In a vocabulary of thousands both pass as lossless."""
    assert not small_fit(verifier, Proposal.IID, ALARM / 2).holds


DRAFTER = """
import torch
from pydantic import BaseModel
from paceline.budget import Budget
from paceline.drafters.base import Drafter
from paceline.draws import siblings
from paceline.tree import DraftTree, Proposal

class Options(BaseModel):
    "None."

class Mine(Drafter):
    name, kinds, budget = "mine", frozenset({Proposal.IID}), Budget(1, 1)

    def __init__(self, size):
        self.size = size

    def propose(self, sequences, budgets):
        return [self.one(*each) for each in zip(sequences, budgets)]

    def one(self, sequence, budget):
        if not budget.some:
            return DraftTree.root(sequence.root)
        probs = torch.arange(1.0, self.size + 1) / sum(range(1, self.size + 1))
        token = siblings(probs, Proposal.IID, 1, sequence, self.name, 0)[0]
        told = probs
        return DraftTree((sequence.root, token), (-1, 0), Proposal.IID, {(0, self.name): told}, ("", self.name))

def build(options, surroundings):
    return Mine(surroundings.target.vocab_size)
"""


@pytest.mark.parametrize(("told", "honest"), [("probs", True), ("torch.ones(self.size) / self.size", False)])
def test_a_drafter_that_records_another_distribution_than_it_drew_from_is_caught(told: str, honest: bool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(DRAFTER.replace("told = probs", f"told = {told}"), encoding="utf-8")
    llm = LLM(save_pair(tmp_path)[0], f"{file}", verify="rejection")
    rows = list(draws(llm, ["the thin", "this"], SamplingParams(temperature=1.0, max_tokens=200, ignore_eos=True)))
    law = law_of(rows)
    assert law is not None
    assert law.drafted > 500
    assert law.drafts_hold is honest
    assert (verdict(rows) == "not lossless") is not honest


def test_only_user_written_verifiers_are_checked_on_four_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_law, "DRAFTS", 256)
    target, draft = save_pair(tmp_path)
    llm = LLM(target, f"model:{draft}", verify="rejection")
    assert not list(small_fits(llm))
    llm.engine.speculative.verifier = Generous()
    assert [fit.kind for fit in small_fits(llm)] == [Proposal.IID, Proposal.POINT]


DRAWING = [
    example
    for row, drafter in zip(described(DRAFTERS), DRAFTERS.values(), strict=True)
    for example in drafter.examples
    if any(Proposal[kind].drawn for kind in row["proposals"].split(", ")) and "tree=dynamic" not in example
]
"""Dynamic trees are refused for verifiers that want drawn tokens (`test_registry`)."""


@pytest.mark.parametrize("rule", [rule for rule in LAW if build_verifier(rule).prefers[0].drawn])
@pytest.mark.parametrize("spec", DRAWING)
def test_every_drafter_that_draws_records_what_it_drew_from(spec: str, rule: str, pair: tuple[str, str]) -> None:
    """And the target keeps its distribution behind such drafts. Under `match`, used in most drafter tests, nothing is drawn."""
    target, draft = pair
    llm = LLM(target, spec.format(draft=draft), verify=rule)
    params = SamplingParams(temperature=1.0, max_tokens=100, ignore_eos=True)
    law = law_of(list(draws(llm, ["the thin", "this"], params)))
    assert law is not None
    assert law.drafted > 100
    assert law.holds


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return save_pair(tmp_path_factory.mktemp("models"))
