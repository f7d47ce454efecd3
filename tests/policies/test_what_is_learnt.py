"""Where learning is costly, only one step in several is learnt from: trials wait for those steps, winning drafts do not."""

from __future__ import annotations

import pytest

from fakes import ChainDrafter, TableModel
from known_costs import LOOKUP, MODEL, adaptive_with
from paceline.budget import Budget, DrafterInfo
from paceline.drafting import Work
from paceline.learning.costs import Timings
from paceline.params import SamplingParams
from paceline.policies import adaptive
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.step import Verdict
from paceline.tree import DraftTree
from paceline.verifiers.match import Match
from stepping import NeverEnds


def policy_of(apart: int, row_s: float) -> adaptive.AdaptivePolicy:
    """One step in `apart` is learnt from, and each further row costs `row_s`."""
    policy = adaptive_with({1: 1.0, 8: 1.0 + 7 * row_s}, 0.5)
    policy._learning_interval.mean_steps = policy._learning_interval._next = apart
    policy._learning_interval.learnt = lambda seconds, step_s: None
    return policy


def run(
    policy: adaptive.AdaptivePolicy, part: DrafterInfo, right: int, steps: int, beside: bool = False
) -> list[tuple[int, bool]]:
    """Per step, the levels granted and whether it was learnt from. right: accepted tokens of a draft.

    beside: whether another drafter is asked in every step. A step that is learnt from takes 0.04 longer.
    """
    seen = []
    one = Sequence(0, (1, 2, 3), SamplingParams(max_tokens=10_000), 0)
    for _ in range(steps):
        tree, asked = DraftTree.root(3), False
        policy.begin(1, 1)
        emitted = [7]
        if not policy.skips_drafting([one]):
            (budget,) = policy.budgets(part, [one], [tree])
            asked = budget.some
            if asked and right >= 0:
                drafted = DraftTree.chain(3, [5] * budget.depth, part.name)
                emitted = [5] * min(right, budget.depth) + [7]
                if policy.learns:
                    policy.acceptance.observe(0, drafted, emitted)
                (tree,) = policy.trimmed([one], [policy.acceptance.rated(0, drafted)])
            seen.append((budget.depth, policy.learns))
        accepted = min(len(emitted), len(tree)) - 1
        verdict = Verdict(tuple(range(1, accepted + 1)), (*emitted[:accepted], 7), accepted)
        asked_s = 1e-6 * (asked or beside)
        policy.observe([one], [tree], [verdict], Timings(asked_s, 1.0, 0.01, 0.01 + 0.04 * policy.learns, asked_s))
    return seen


def test_a_drafter_is_tried_in_steps_that_are_learnt_from() -> None:
    tried = [learns for depth, learns in run(policy_of(4, 1.0), MODEL, 0, 4000, beside=True) if depth]
    assert tried
    assert all(tried)


def test_drafts_that_win_go_on_in_all_steps() -> None:
    seen = run(policy_of(4, 0.01), LOOKUP, 6, 400)
    assert 0.9 * 400 / 4 < sum(learns for depth, learns in seen if depth) < 1.2 * 400 / 4
    assert sum(depth > 0 for depth, _ in seen) > 0.95 * len(seen)


def test_a_look_up_that_finds_nothing_is_paused_at_once() -> None:
    asked = [sum(depth > 0 for depth, _ in run(policy_of(apart, 1.0), LOOKUP, -1, 200)) for apart in (1, 4)]
    assert asked[0] == pytest.approx(asked[1], abs=3)
    assert asked[0] < 80


def test_steps_with_drafts_are_counted_alike_however_few_are_learnt_from() -> None:
    for apart in (1, 4):
        policy = policy_of(apart, 0.01)
        run(policy, LOOKUP, 6, 100)
        assert policy._draft_pauses._asked == pytest.approx(100, abs=4), "all steps with drafts are counted"


def test_the_time_of_learning_is_spread_over_the_steps_not_learnt_from() -> None:
    policy = policy_of(4, 0.01)
    run(policy, LOOKUP, 6, 400)
    assert policy._step_time._shares * policy._step_time._behind_s[True] == pytest.approx(0.02 + 0.04 / 4, abs=0.004)


def test_steps_not_learnt_from_are_drafted_in_and_judged_all_the_same() -> None:
    class Now(FixedPolicy):
        def begin(self, rows: int, sequences: int) -> None:
            self.learns = not self.learns

    model, policy = TableModel(6), Now()
    speculative = Speculative(model, ChainDrafter(model), Match(), policy)
    sequence = Sequence(0, (1, 2, 3), SamplingParams(max_tokens=10_000), 0)
    observed, seen = [], []
    policy.acceptance.observe = lambda *one: observed.append(policy.learns)
    policy.costs.curve.see = lambda *one: seen.append(policy.learns)
    for _ in range(20):
        held = speculative.cache.length(0)
        speculative.step([Work(sequence, held, len(sequence.tokens) - held, Budget(4, 4))], NeverEnds())
    assert observed == [True] * 10
    assert all(seen)
    assert len(seen) >= 9, "the first step read the prompt"
    assert sequence.speculation.steps == policy.costs.steps == 20
    assert sequence.speculation.draft_tokens >= 40
