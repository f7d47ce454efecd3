"""Mutants of the rules that keep the law, and the two checks that must catch them: enumerated laws, and the real step loop.

`rules` enumerates every outcome of small drafts, so it sees any deviation, but no fault of the random draws themselves;
`dice` runs the loop with thousands of seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Many
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import fakes
import reference
from enumeration import Source, blocks, contrastive_law, error, target_law
from fakes import DrawnDrafter, TableModel, TrimmingPolicy
from grammars import rising
from laws import PROMPT, bulk, drawn, obeys
from mutants import altered, mutant, replaced
from paceline import draws, trials
from paceline.compose import build_verifier
from paceline.drafting import Drafting
from paceline.kernels.choices import distributions
from paceline.params import Grammar, SamplingParams
from paceline.sampling import Context
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.trials import Group, Trials
from paceline.verifiers import base, block, contrastive, k_seq, spechub
from paceline.verifiers.base import NodeByNode

MODEL = TableModel(4, sharpness=1.2, seed=3)
DRAFT, OTHER = MODEL.disturbed(1.0), MODEL.disturbed(1.5, seed=5)
WITHOUT = Proposal.WITHOUT_REPLACEMENT
PARAMS = SamplingParams(temperature=0.8, frequency_penalty=0.7)
CUT = [
    SamplingParams(temperature=0.8, top_p=0.85, frequency_penalty=0.3),
    SamplingParams(temperature=0.8, top_k=3, min_p=0.2),
]
SPELLED = SamplingParams(temperature=0.8, repetition_penalty=1.3, grammar=Grammar(kind="regex", text="stood in for"))
CASES: list[tuple[str, list[Source]]] = [
    ("rejection", [Source(DRAFT, Proposal.IID, (1, 1))]),
    ("multi-round", [Source(DRAFT, Proposal.IID, (2, 1))]),
    ("multi-round", [Source(DRAFT, WITHOUT, (2, 1))]),
    ("multi-round", [Source(DRAFT, WITHOUT, (2,)), Source(OTHER, WITHOUT, (1,), "other")]),
    ("multi-round", [Source(DRAFT, Proposal.POINT, (2, 1), amateur=True)]),
    ("k-seq", [Source(DRAFT, Proposal.IID, (2, 1))]),
    ("spechub", [Source(DRAFT, Proposal.HUB, (2, 1))]),
    ("block", [Source(DRAFT, Proposal.IID, (1, 1, 1))]),
]


def rules() -> bool:
    """The joint law of every case is exact to 1e-12; False also if the code raises one of its own errors."""
    try:
        cut = [_exact(rule, sources, params) for rule, sources in (CASES[0], CASES[-1]) for params in CUT]
        spelled = [_exact(rule, sources, SPELLED) for rule, sources in (CASES[0], CASES[-1])]
        return all(cut) and all(spelled) and all(_exact(rule, sources) for rule, sources in CASES) and _contrasts()
    except (AssertionError, ValueError):
        return False


def _exact(rule: str, sources: list[Source], params: SamplingParams = PARAMS) -> bool:
    length = max(len(source.widths) for source in sources) + 1
    constraint = None if params.grammar is None else partial(rising, 4)
    found = blocks(build_verifier(rule), MODEL, sources, params, constraint)
    return error(found, target_law(MODEL, params, constraint), 4, length) < 1e-12


def _contrasts() -> bool:
    """`contrastive` keeps the law of its own formula, which has no penalties."""
    source, params = Source(DRAFT, WITHOUT, (2, 1), amateur=True), SamplingParams(temperature=0.8)
    law = contrastive_law(MODEL, DRAFT, temperature=params.temperature)
    return error(blocks(build_verifier("contrastive"), MODEL, [source], params), law, 4, 3) < 1e-12


LOOP_PARAMS = SamplingParams(temperature=1.2)


def dice() -> bool:
    """Joint law of three tokens in the whole loop, 3,000 seeds a rule, false-alarm rate 1e-6."""
    model = TableModel(5, sharpness=1.3, seed=8)
    # the rejected token nearly beat one of the two tokens left, so their noise is no longer independent
    target, draft = _everywhere([0.01, 0.5, 0.49]), _everywhere([0.5, 0.4, 0.1])
    with pytest.MonkeyPatch.context() as patch:
        # a short stretch: most of five tokens lie beyond the first one
        patch.setattr(draws, "_STRETCH", 2)
        return all(
            _in_the_loop(*case)
            for case in [
                ("rejection", model, model.disturbed(1.0), Proposal.IID, (1, 1)),
                ("multi-round", model, model.disturbed(1.0), WITHOUT, (3, 1)),
                ("block", model, model.disturbed(1.0), Proposal.IID, (1, 1)),
                ("rejection", target, draft, Proposal.IID, (1,)),
            ]
        )


def _in_the_loop(rule: str, model: TableModel, draft: TableModel, kind: Proposal, widths: tuple[int, ...]) -> bool:
    law = reference.law(lambda tokens: model.row(tokens).double().numpy(), PROMPT, LOOP_PARAMS, 3)
    drafter, verifier, policy = DrawnDrafter(draft, kind, widths), build_verifier(rule), TrimmingPolicy()
    with bulk():
        return obeys(drawn(model, drafter, LOOP_PARAMS, range(3_000), verifier=verifier, policy=policy), law)


def _everywhere(probs: Many[float]) -> TableModel:
    """A model that gives the same distribution in every context, under the temperature of these checks."""
    model = TableModel(len(probs))
    model.table = (torch.tensor(probs).log() * LOOP_PARAMS.temperature).expand_as(model.table)
    return model


def _trials(patch: pytest.MonkeyPatch, change: Callable[[np.ndarray, list[Group]], Trials]) -> None:
    patch.setattr(NodeByNode, "trials", lambda self, target_probs, groups: change(target_probs, list(groups)))


def _grouped(patch: pytest.MonkeyPatch, change: Callable[[DraftTree, Group], Group]) -> None:
    honest = trials.groups_below

    def lossy(tree: DraftTree, nodes: Many[int]) -> Iterator[Group]:
        return (change(tree, group) for group in honest(tree, nodes))

    patch.setattr(base, "groups_below", lossy)
    patch.setattr(block, "groups_below", lossy)


@mutant("rules", "dice")
def on_rejection_the_target_is_drawn_from_instead_of_the_residual(patch: pytest.MonkeyPatch) -> None:
    for room in (trials, k_seq, spechub, block):
        patch.setattr(room, "normalised", lambda weights, otherwise: otherwise)


@mutant("rules")
def the_proposal_is_not_the_one_that_was_drawn_from(patch: pytest.MonkeyPatch) -> None:
    """The recorded proposal is that of another temperature."""
    honest = trials.recorded
    patch.setattr(trials, "recorded", lambda row: honest(row**0.97))


@mutant("rules")
def the_bonus_token_is_drawn_from_the_draft(patch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []

    def change(target_probs: np.ndarray, groups: list[Group]) -> Trials:
        if not groups and seen:
            return seen[-1]
        for group in groups:
            if group.proposal_probs is not None:
                seen.append(group.proposal_probs)
            target_probs = yield from trials.recursive(target_probs, group)
        return target_probs

    _trials(patch, change)


@mutant("rules")
def siblings_drawn_with_replacement_are_verified_as_without(patch: pytest.MonkeyPatch) -> None:
    def change(tree: DraftTree, group: Group) -> Group:
        return replace(group, kind=Proposal.WITHOUT_REPLACEMENT) if group.kind is Proposal.IID else group

    _grouped(patch, change)


@mutant("rules")
def siblings_drawn_without_replacement_are_verified_as_with(patch: pytest.MonkeyPatch) -> None:
    def change(tree: DraftTree, group: Group) -> Group:
        return replace(group, kind=Proposal.IID) if group.kind is Proposal.WITHOUT_REPLACEMENT else group

    _grouped(patch, change)


@mutant("rules")
def siblings_are_tested_by_probability_and_not_as_they_were_drawn(patch: pytest.MonkeyPatch) -> None:
    def change(tree: DraftTree, group: Group) -> Group:
        if group.proposal_probs is None:
            return group
        probs = group.proposal_probs
        order = sorted(range(len(group.tokens)), key=lambda place: -probs[group.tokens[place]])
        return replace(
            group, nodes=tuple(group.nodes[place] for place in order), tokens=tuple(group.tokens[place] for place in order)
        )

    _grouped(patch, change)


@mutant("rules")
def equal_siblings_are_one_trial(patch: pytest.MonkeyPatch) -> None:
    def change(tree: DraftTree, group: Group) -> Group:
        first: dict[int, int] = {}
        for node, token in zip(group.nodes, group.tokens, strict=True):
            first.setdefault(token, node)
        return replace(group, nodes=tuple(first.values()), tokens=tuple(first))

    _grouped(patch, change)


@mutant("rules")
def all_sources_are_tested_against_the_proposal_of_the_first(patch: pytest.MonkeyPatch) -> None:
    def change(tree: DraftTree, group: Group) -> Group:
        parent = tree.parents[group.nodes[0]]
        row = next((row for (node, _), row in tree.proposals.items() if node == parent), None)
        return group if row is None or not tree.kind.drawn else replace(group, proposal_probs=trials.recorded(row))

    _grouped(patch, change)


@mutant("rules")
def chosen_tokens_are_tested_as_if_they_had_been_drawn(patch: pytest.MonkeyPatch) -> None:
    """The model's likeliest tokens are tested against its whole distribution."""

    def change(tree: DraftTree, group: Group) -> Group:
        row = tree.proposals.get((tree.parents[group.nodes[0]], tree.sources[group.nodes[0]]))
        return group if row is None else replace(group, kind=Proposal.IID, proposal_probs=trials.recorded(row))

    _grouped(patch, change)


@mutant("rules")
def the_temperature_of_the_tests_is_three_per_cent_off(patch: pytest.MonkeyPatch) -> None:
    _spread_otherwise(patch, lambda sequence: {"temperature": sequence.params.temperature * 1.03})


@mutant("rules")
def the_tests_know_nothing_of_top_p(patch: pytest.MonkeyPatch) -> None:
    _spread_otherwise(patch, lambda sequence: {"top_p": 1.0})


@mutant("rules")
def the_tests_know_nothing_of_min_p(patch: pytest.MonkeyPatch) -> None:
    _spread_otherwise(patch, lambda sequence: {"min_p": 0.0})


@mutant("rules")
def the_tests_know_nothing_of_penalties(patch: pytest.MonkeyPatch) -> None:
    _spread_otherwise(patch, lambda sequence: {"frequency_penalty": 0.0})


def _spread_otherwise(patch: pytest.MonkeyPatch, change: Callable[[Sequence], dict[str, float]]) -> None:
    """Distributions of the target are computed under other parameters."""
    honest = distributions.distribution

    def lossy(logits: torch.Tensor, context: Context) -> np.ndarray:
        return honest(logits, Context(replaced(context.sequence, **change(context.sequence)), context.ancestors))

    for room in (base, block):
        patch.setattr(room, "distribution", lossy)


@mutant("rules")
def the_tests_penalise_what_a_grammar_leaves_twice(patch: pytest.MonkeyPatch) -> None:
    lossy = altered(distributions.distribution, "shaped(logits, context), False", "shaped(logits, context), shapes")
    for room in (base, block):
        patch.setattr(room, "distribution", lossy)


@mutant("rules")
def the_tests_penalise_committed_tokens_only(patch: pytest.MonkeyPatch) -> None:
    for room in (base, block):
        patch.setattr(room, "Context", lambda sequence, ancestors=(): Context(sequence))


@mutant("rules")
def drafts_are_accepted_a_tenth_too_often(patch: pytest.MonkeyPatch) -> None:
    for room in (trials, k_seq, block):
        honest = room.ratio
        patch.setattr(room, "ratio", lambda *those, honest=honest: 1.1 * honest(*those))


@mutant("rules")
def k_seq_knows_of_one_draft_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(k_seq, "least_ratio", lambda target_probs, proposal_probs, count: 1.0)


@mutant("rules")
def k_seq_takes_what_one_draft_gives_for_what_all_do(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(k_seq.KSeq, "tested", altered(k_seq.KSeq.tested, "accepted * often", "accepted"))


@mutant("rules")
def a_hub_is_always_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spechub.SpecHub, "tested", altered(spechub.SpecHub.tested, "min(held / left, 1.0)", "1.0"))


@mutant("rules")
def of_a_pair_the_hub_is_tested_first(patch: pytest.MonkeyPatch) -> None:
    honest = spechub.SpecHub.tested

    def lossy(self: spechub.SpecHub, target_probs: np.ndarray, group: Group) -> Trials:
        steps = honest(self, target_probs, group)
        if len(group.tokens) < 2:
            return (yield from steps)
        first, second = next(steps), next(steps)
        yield second
        yield first
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value
        raise AssertionError

    patch.setattr(spechub.SpecHub, "tested", lossy)


@mutant("rules")
def a_block_ends_at_the_first_part_that_fails(patch: pytest.MonkeyPatch) -> None:
    def lossy(sequence: Sequence, tree: DraftTree, logits: torch.Tensor) -> Verdict:
        path, chain = block._first_chain(sequence, tree, logits)
        length = 0
        while length < len(path) and block.happens(chain.chance(length + 1), sequence, "accept", path[length]):
            length += 1
        last = block.drawn(chain.law(length), sequence, "residual", path[length - 1] if length else 0)
        return Verdict(path[:length], (*chain.tokens[:length], last), length)

    patch.setattr(block, "_verified", lossy)


@mutant("rules")
def part_of_a_block_passes_as_often_as_all_of_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block.Chain, "chance", altered(block.Chain.chance, "excess / either", "self.kept[length]"))


def _contrasted(patch: pytest.MonkeyPatch, text: str, by: str) -> None:
    honest = contrastive.Contrastive.target_probs
    patch.setattr(contrastive.Contrastive, "target_probs", altered(honest, text, by))


@mutant("rules")
def contrastive_scores_are_divided_by_the_temperature_twice(patch: pytest.MonkeyPatch) -> None:
    _contrasted(patch, "amateur), sequence.params", "amateur) / sequence.params.temperature, sequence.params")


@mutant("rules")
def the_amateur_is_not_contrasted_with(patch: pytest.MonkeyPatch) -> None:
    _contrasted(patch, "if amateur is None", "if True")


@mutant("dice")
def one_number_decides_all_tests_of_a_step(patch: pytest.MonkeyPatch) -> None:
    honest = draws.chance
    patch.setattr(draws, "chance", lambda sequence, name, node: honest(sequence, name, 0))


@mutant("dice")
def a_draft_is_drawn_with_the_number_that_draws_the_residual(patch: pytest.MonkeyPatch) -> None:
    honest = draws.stream
    patch.setattr(draws, "stream", lambda seed, name, node=0, trial=0: honest(seed, "", node, trial))


@mutant("dice")
def a_token_behind_the_first_stretch_is_sought_from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draws, "drawn", altered(draws.drawn, "aim - (sums[at - 1] if at else 0.0)", "aim - 0.0"))
    for room in (base, block):
        patch.setattr(room, "drawn", draws.drawn)


@mutant("dice")
def drawn_trees_are_trimmed_as_looked_up_ones_are(patch: pytest.MonkeyPatch) -> None:
    honest = Drafting._trim
    patch.setattr(Drafting, "_trim", altered(honest, "and not draft.tree.kind.drawn and", "and"))


@mutant("dice")
def a_drawn_token_is_withheld_where_it_is_improbable(patch: pytest.MonkeyPatch) -> None:
    honest = DrawnDrafter._children

    def lossy(self: DrawnDrafter, probs: torch.Tensor, width: int, sequence: Sequence, node: int) -> list[int]:
        return [token for token in honest(self, probs, width, sequence, node) if probs[token] > 0.25]

    patch.setattr(fakes.DrawnDrafter, "_children", lossy)
