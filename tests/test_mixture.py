"""Mixtures: where only one part's draft fits, the likelier one is kept, whichever part comes first."""

from __future__ import annotations

from collections.abc import Sequence as Many

import pytest
import torch

from fakes import ChainDrafter, TableModel, WrongDrafter, coupled
from paceline.budget import Budget, DrafterInfo
from paceline.cache.base import Branching
from paceline.drafters.merge import MergedDrafter
from paceline.drafting import Work
from paceline.params import SamplingParams
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.match import Match
from paceline.verifiers.multi_round import MultiRound, Options
from paceline.verifiers.rejection import Rejection
from stepping import NeverEnds


class Right(ChainDrafter):
    name = "right"


class Wrong(WrongDrafter):
    name = "wrong"


@pytest.mark.parametrize("branching", [Branching.TREE, Branching.CHAIN])
def test_a_mixture_learns_to_show_the_part_whose_drafts_are_accepted(branching: Branching) -> None:
    model = TableModel(6, branching=branching)
    speculative = Speculative(model, MergedDrafter([Wrong(model), Right(model)]), Match(), FixedPolicy())
    sequence, emitted = Sequence(0, (1, 2, 3), SamplingParams(max_tokens=10_000), 0), []
    for _ in range(40):
        held = speculative.cache.length(0)
        work = Work(sequence, held, len(sequence.tokens) - held, Budget(4, 4))
        (outcome,) = speculative.step([work], NeverEnds())
        assert outcome.tree is not None
        assert len(outcome.tree) <= 5
        emitted.append(len(outcome.verdict.tokens))
    assert sum(emitted[20:]) / 20 > 4.5


def test_a_policy_is_not_asked_about_sequences_without_room_for_drafts() -> None:
    """Such as one limited to a single token: the policy would count it as drafted for without success."""

    class Noting(FixedPolicy):
        def budgets(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
            asked.append([sequence.key for sequence in sequences])
            return super().budgets(drafter, sequences, trees)

    asked, model = list[list[int]](), TableModel(6)
    speculative = Speculative(model, MergedDrafter([Wrong(model), Right(model)]), Match(), Noting())
    sequences = [Sequence(key, (1, 2, 3), SamplingParams(max_tokens=10_000), 0) for key in range(3)]
    for rooms in ((4, 0, 4), (0, 0, 0), (4, 4, 4)):
        work = [
            Work(sequence, held, len(sequence.tokens) - held, Budget(room, 4))
            for sequence, room in zip(sequences, rooms, strict=True)
            for held in [speculative.cache.length(sequence.key)]
        ]
        outcomes = speculative.step(work, NeverEnds())
        assert [outcome.tree is not None and len(outcome.tree) > 1 for outcome in outcomes] == [room > 0 for room in rooms]
    assert asked == [[0, 2], [0, 2], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("drawn", [True, False])
def test_drawn_trees_share_the_room_and_are_not_cut(drawn: bool) -> None:
    """Pruning drawn trees would depend on the drawn tokens; of other trees the likelier nodes stay."""

    class Drawing(ChainDrafter):
        def __init__(self, model: TableModel, name: str) -> None:
            super().__init__(model)
            self.name = name

        def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
            asked.append([budget.nodes for budget in budgets])
            kind = Proposal.IID if drawn else Proposal.POINT
            row = torch.full((6,), 1 / 6)
            return [
                DraftTree.chain(
                    sequence.root,
                    [1] * min(budget.nodes, 3),
                    self.name,
                    kind,
                    proposals={(node, self.name): row for node in range(min(budget.nodes, 3))} if drawn else None,
                )
                for sequence, budget in zip(sequences, budgets, strict=True)
            ]

    model, asked, sequence = TableModel(6), list[list[int]](), Sequence(0, (1, 2, 3), SamplingParams(temperature=1.0), 0)
    merged = MergedDrafter([Drawing(model, "one"), Drawing(model, "other")])
    (tree,) = merged.propose([sequence], [Budget(5, 5)])
    assert asked == [[5], [2 if drawn else 5]]
    assert len(tree) == (6 if drawn else 4)
    speculative = Speculative(model, merged, MultiRound(Options()) if drawn else Match(), FixedPolicy())
    speculative.step([Work(sequence, 0, 3, Budget(5, 5))], NeverEnds())
    assert asked[2:] == [[5], [2 if drawn else 5]]


def test_a_model_whose_context_is_full_is_not_asked() -> None:
    drafter = coupled(TableModel(6))
    drafter.model.context_length = 8
    assert drafter.suits(Sequence(0, (1,) * 8, SamplingParams(), 0))
    assert not drafter.suits(Sequence(0, (1,) * 9, SamplingParams(), 0))


@pytest.mark.parametrize("rule", [Rejection(), Block(), MultiRound(Options())])
@pytest.mark.parametrize("drawing_first", [False, True])
def test_a_mixture_of_drawn_and_found_drafts_shows_one_part_with_its_proposals(rule: Verifier, drawing_first: bool) -> None:
    """Beside others drawn tokens would count as point masses: only one part drafts, chosen before anything is drawn."""

    class Found(ChainDrafter):
        name = "found"
        chance = 0.9

        def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
            return [DraftTree.chain(one.root, [2] * 3, self.name, confidences=[self.chance] * 3) for one in sequences]

    class Drawing(ChainDrafter):
        name, kinds, asked = "drawing", frozenset({Proposal.POINT, Proposal.IID}), 0
        costly = True

        def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
            self.asked += 1
            proposals = {(node, self.name): torch.full((6,), 1 / 6) for node in range(2)}
            return [DraftTree.chain(one.root, [1, 3], self.name, Proposal.IID, proposals=proposals) for one in sequences]

    model = TableModel(6)
    drawing, found = Drawing(model), Found(model)
    parts = [drawing, found] if drawing_first else [found, drawing]
    speculative = Speculative(model, MergedDrafter(parts), rule, FixedPolicy())
    sequence, sources = Sequence(0, (1, 2, 3), SamplingParams(temperature=1.0, max_tokens=10_000), 0), list[str | None]()
    for chance in (0.9, 0.9, 0.01, 0.01):
        found.chance = chance
        held, asked = speculative.cache.length(0), drawing.asked
        (outcome,) = speculative.step([Work(sequence, held, len(sequence.tokens) - held, Budget(5, 5))], NeverEnds())
        assert outcome.tree is not None
        sources.append(outcome.tree.only_source)
        assert outcome.tree.kind is (Proposal.IID if sources[-1] == "drawing" else Proposal.POINT)
        assert len(outcome.tree.proposals) == (2 if sources[-1] == "drawing" else 0)
        assert drawing.asked == asked + (sources[-1] == "drawing")
    # lookups draft first, whatever the order in the spec
    assert (sources[0], sources[-1]) == ("found", "drawing")


def test_a_model_that_drew_badly_beside_lookups_can_come_back() -> None:
    class Found(ChainDrafter):
        name = "found"

        def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
            return [DraftTree.chain(one.root, [2, 2], self.name, confidences=[0.5, 0.5]) for one in sequences]

    class Drawing(ChainDrafter):
        """Draws tokens that the target chooses once `right` is set."""

        name, kinds, costly, right = "drawing", frozenset({Proposal.POINT, Proposal.IID}), True, False

        def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
            return [self._drawn(one) for one in sequences]

        def _drawn(self, one: Sequence) -> DraftTree:
            text, proposals = list(one.tokens), dict[tuple[int, str], torch.Tensor]()
            for node in range(3):
                likely = int(model.row(text).argmax())
                token = likely if self.right else (likely + 1) % 6
                proposals[node, self.name] = torch.eye(6)[token]
                text.append(token)
            return DraftTree.chain(one.root, text[len(one.tokens) :], self.name, Proposal.IID, proposals=proposals)

    model = TableModel(6, sharpness=30.0)
    drawing = Drawing(model)
    speculative = Speculative(model, MergedDrafter([Found(model), drawing]), Rejection(), FixedPolicy())
    sequence, sources = Sequence(0, (1, 2, 3), SamplingParams(temperature=1.0, max_tokens=10_000), 0), list[str | None]()
    for number in range(1200):
        drawing.right = number >= 300
        held = speculative.cache.length(0)
        (outcome,) = speculative.step([Work(sequence, held, len(sequence.tokens) - held, Budget(5, 5))], NeverEnds())
        assert outcome.tree is not None
        sources.append(outcome.tree.only_source)
    assert sources[200:300].count("drawing") <= 4
    assert sources[-100:].count("drawing") > 90


@pytest.mark.parametrize(("temperature", "size"), [(1.0, 2), (0.0, 3)])
def test_a_rule_that_reads_a_chain_is_shown_one(temperature: float, size: int) -> None:
    class Wide(ChainDrafter):
        def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
            return [DraftTree.grown("wide", (one.root, 1, 2), (-1, 0, 0), (1.0, 0.6, 0.4)) for one in sequences]

    model = TableModel(6)
    speculative = Speculative(model, Wide(model), Rejection(), FixedPolicy())
    sequence = Sequence(0, (1, 2, 3), SamplingParams(temperature=temperature, max_tokens=10_000), 0)
    (outcome,) = speculative.step([Work(sequence, 0, 3, Budget(5, 5))], NeverEnds())
    assert outcome.tree is not None
    assert len(outcome.tree) == size


def test_a_mixture_declares_whatever_one_of_its_drafters_may_propose_alone() -> None:
    """Where only one part finds anything, its tree is verified as it is, and the guarantee is reported beforehand."""
    model = TableModel(5)
    found, drawn = Right(model), Right(model)
    found.kinds, drawn.kinds = frozenset({Proposal.COUPLED}), frozenset({Proposal.IID})
    assert MergedDrafter([found, drawn]).kinds == {Proposal.POINT, Proposal.COUPLED, Proposal.IID}
