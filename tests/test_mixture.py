"""Mixtures: where there is room for one part's draft only, the likelier one is kept, whichever part came first."""

from __future__ import annotations

import pytest

from fakes import ChainDrafter, TableModel, WrongDrafter
from paceline.cache.base import Branching
from paceline.drafters.merge import MergedDrafter
from paceline.params import SamplingParams
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.speculative import Speculative, Work
from paceline.step import Verdict
from paceline.tree import Budget
from paceline.verifiers.match import Match


class Right(ChainDrafter):
    name = "right"


class Wrong(WrongDrafter):
    name = "wrong"


class NeverEnds:
    def cut(self, sequence: Sequence, verdict: Verdict) -> Verdict:
        return verdict


@pytest.mark.parametrize("branching", [Branching.TREE, Branching.CHAIN])
def test_the_part_that_is_right_is_looked_at_whichever_comes_first(branching: Branching) -> None:
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
