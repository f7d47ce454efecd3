"""The law of every rule, enumerated in float64: every draft, every test, chains and trees, one source and several."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from enumeration import Source, blocks, error, target_law
from fakes import TableModel
from grammars import rising
from paceline.compose import build_verifier
from paceline.params import Grammar, SamplingParams
from paceline.registry import VERIFIERS
from paceline.tree import Proposal
from paceline.verifiers.base import Exactness

RULES = [row.example for row in VERIFIERS.values() if Exactness.LAW in build_verifier(row.example).exactness.values()]
SHAPES = {"chain": (5, (1, 1, 1)), "trio": (5, (3,)), "wide": (3, (3, 1)), "tree": (3, (2, 2)), "deep": (3, (2, 1, 1))}
"""Vocabulary size, and children per node on each level."""
FOREIGN = ("trio", "deep")
"""Shapes for kinds that a rule accepts but does not prefer, in the quick suite."""
PLAIN = SamplingParams(temperature=1.0)
SHAPED = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.7, logit_bias={1: 0.5})
STOOD_IN_FOR = Grammar(kind="regex", text="stood in for")
OF_GRAMMAR = {
    "plain": SamplingParams(temperature=0.9, grammar=STOOD_IN_FOR),
    "shaped": SHAPED.model_copy(update={"grammar": STOOD_IN_FOR}),
}


def models(size: int) -> tuple[TableModel, TableModel]:
    target = TableModel(size, sharpness=1.2, seed=size)
    return target, target.disturbed(1.0)


EVERY_CASE = [
    (rule, kind, shape, params) for rule in RULES for kind in Proposal for shape in SHAPES for params in (PLAIN, SHAPED)
]
QUICK = [
    (rule, kind, shape, params)
    for rule, kind, shape, params in EVERY_CASE
    if (shape in FOREIGN or kind in build_verifier(rule).prefers) and (params is PLAIN) == (shape in ("trio", "wide"))
]


def _named(case: tuple[str, Proposal, str, SamplingParams]) -> str:
    rule, kind, shape, params = case
    return f"{rule}, {kind.value}, {shape}, {'plain' if params is PLAIN else 'shaped'}"


@pytest.mark.parametrize("case", QUICK, ids=_named)
def test_a_step_has_the_law_of_the_target(case: tuple[str, Proposal, str, SamplingParams]) -> None:
    keeps_the_law(*case)


@pytest.mark.full
@pytest.mark.parametrize("case", [case for case in EVERY_CASE if case not in QUICK], ids=_named)
def test_a_step_has_the_law_of_the_target_in_every_case(case: tuple[str, Proposal, str, SamplingParams]) -> None:
    keeps_the_law(*case)


def keeps_the_law(rule: str, kind: Proposal, shape: str, params: SamplingParams) -> None:
    size, widths = SHAPES[shape]
    if kind is Proposal.HUB:
        widths = tuple(min(width, 2) for width in widths)
    target, draft = models(size)
    found = blocks(build_verifier(rule), target, [Source(draft, kind, widths)], params)
    assert error(found, target_law(target, params), size, len(widths) + 1) < 1e-12
    assert found.accepted > 0.2


@pytest.mark.parametrize("shaping", OF_GRAMMAR)
@pytest.mark.parametrize("rule", RULES)
def test_a_step_under_a_grammar_has_the_law_of_the_target(rule: str, shaping: str) -> None:
    """The mask of a node depends on the draft above it; drafts are drawn without the grammar."""
    target, draft = models(4)
    params = OF_GRAMMAR[shaping]
    for kind in (build_verifier(rule).prefers[0], Proposal.POINT):
        found = blocks(build_verifier(rule), target, [Source(draft, kind, (2, 1))], params, lambda: rising(4))
        law = target_law(target, params, lambda: rising(4))
        assert error(found, law, 4, 3) < 1e-12
        said = [text for text, probability in found.by_text.items() if probability > 0.0]
        assert all(rising(4).allowed(text[:at])[token] for text in said for at, token in enumerate(text))


@pytest.mark.parametrize("kind", [kind for kind in Proposal if kind.drawn])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_with_drafts_of_two_models_has_the_law_of_the_target(rule: str, kind: Proposal) -> None:
    """Equal tokens of both are siblings, and a continuation drafted by either counts below both."""
    target, draft = models(3)
    sources = [Source(draft, kind, (2, 1)), Source(target.disturbed(1.5, seed=5), kind, (1, 1), "other")]
    found = blocks(build_verifier(rule), target, sources, PLAIN)
    assert error(found, target_law(target, PLAIN), 3, 3) < 1e-12
    alone = blocks(build_verifier(rule), target, sources[:1], PLAIN)
    assert found.accepted > alone.accepted or build_verifier(rule).reads_chain


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in Proposal if kind.drawn])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_where_one_model_uses_the_budget_left_by_another_has_the_law_of_the_target(
    rule: str, kind: Proposal, same: bool
) -> None:
    """The length of the second draft depends on the tokens of the first. same: one model under two names."""
    target, draft = models(3)
    other = draft if same else target.disturbed(1.5, seed=5)
    for end in range(3):
        sources = [Ended(draft, kind, (1, 1, 1), end=end), Behind(other, kind, (1, 1, 1), "other")]
        found = blocks(build_verifier(rule), target, sources, PLAIN)
        assert error(found, target_law(target, PLAIN), 3, 4) < 1e-12


@dataclass(frozen=True)
class Ended(Source):
    """Drafts nothing behind the token `end`."""

    end: int = 0

    def tree(self, sequence, dice):
        return super().tree(sequence, dice).until(frozenset({self.end}))


class Behind(Source):
    """Drafts at most the nodes that others left of three."""

    def beside(self, tree):
        return replace(self, widths=self.widths[: max(len(self.widths) + 1 - len(tree), 0)])


@pytest.mark.parametrize("kind", Proposal)
@pytest.mark.parametrize("rule", RULES)
def test_a_step_whose_drafts_end_behind_unlikely_tokens_has_the_law_of_the_target(rule: str, kind: Proposal) -> None:
    """Nothing is drafted behind an unlikely token; the token itself stays, so no token is withheld for its value."""
    target, draft = models(4)
    for widths in ((1, 1, 1), (2, 1)):
        source = Source(draft, kind, widths, floor=0.3)
        found, whole = (blocks(build_verifier(rule), target, [one], PLAIN) for one in (source, replace(source, floor=0.0)))
        assert error(found, target_law(target, PLAIN), 4, len(widths) + 1) < 1e-12
        assert 0.2 < found.accepted <= whole.accepted
        if kind.drawn:
            assert found.accepted < whole.accepted, "some drafts ended early"


@pytest.mark.parametrize("rule", RULES)
def test_a_drawn_draft_cut_by_position_alone_keeps_the_law(rule: str) -> None:
    target, draft = models(4)
    for kind, widths in [(Proposal.WITHOUT_REPLACEMENT, (3, 1)), (Proposal.IID, (2, 1)), (Proposal.HUB, (2, 1))]:
        source = Cut(draft, kind, widths)
        found = blocks(build_verifier(rule), target, [source], PLAIN)
        assert error(found, target_law(target, PLAIN), 4, 3) < 1e-12


class Cut(Source):
    """The first nodes of a tree: a budget may end between siblings."""

    def tree(self, sequence, dice):
        whole = super().tree(sequence, dice)
        return whole.first(len(whole) - 2)
