"""Policies: how deep drafts are, for which requests, and which of their nodes the target verifies."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st

from fakes import TableModel
from known_costs import LOOKUP, MODEL, adaptive_with
from paceline.budget import NOTHING, Budget, DrafterInfo
from paceline.engine.scheduler import Limits
from paceline.learning.calibration import _Record
from paceline.learning.costs import Timings
from paceline.learning.depth_acceptance import DraftContext
from paceline.learning.step_time import CLEARLY
from paceline.params import SamplingParams
from paceline.policies import bass, confidence
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree
from serving import engine_of

settings.register_profile("still", derandomize=True, deadline=None, max_examples=100, database=None)
settings.load_profile("still")

STEP = Timings(0.0, 1.0, 0.0, 0.0)


def sequence(key: int = 0) -> Sequence:
    return Sequence(key, (1, 2, 3), SamplingParams(), 0)


def teach(policy: Policy, key: int, drafted: DraftTree, emitted: list[int], granted: int = 0) -> None:
    """What a policy learns from the draft of one step. granted: levels granted; by default those of the draft."""
    policy.acceptance.observe(key, drafted, emitted)
    policy.depth_acceptance.observe(drafted.sources[1], granted or drafted.deepest, drafted, emitted, DraftContext.ALONE)


def run(policy: Policy, part: DrafterInfo, rate: float, steps: int, key: int = 0) -> list[int]:
    """Depths granted per step. rate: share of the depth that is accepted; below 0: nothing is found."""
    depths = []
    for _ in range(steps):
        one, tree = sequence(key), DraftTree.root(3)
        (budget,) = policy.budgets(part, [one], [tree])
        depths.append(budget.depth)
        emitted = [7]
        if budget.depth and rate >= 0.0:
            drafted = DraftTree.chain(3, [5] * budget.depth, part.name)
            right = round(rate * budget.depth)
            emitted = [5] * right + [7]
            teach(policy, key, drafted, emitted)
            (tree,) = policy.trimmed([one], [policy.acceptance.rated(key, drafted)])
        accepted = min(len(emitted), len(tree)) - 1
        policy.observe([one], [tree], [Verdict(tuple(range(1, accepted + 1)), (*emitted[:accepted], 7), accepted)], STEP)
    return depths


def test_a_draft_that_comes_true_is_made_as_deep_as_it_may_where_rows_are_free() -> None:
    assert run(adaptive_with({1: 1.0, 8: 1.01}, 0.01), MODEL, 1.0, 50)[-1] == 6


def test_nothing_is_drafted_where_a_row_costs_as_much_as_a_step() -> None:
    depths = run(adaptive_with({1: 1.0, 8: 8.0}, 0.5), MODEL, 0.5, 300)
    assert sum(map(bool, depths[50:])) < 8


def test_a_drafter_that_fails_is_left_alone_and_comes_back_when_it_succeeds() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.2}, 0.2)
    bad = run(policy, MODEL, 0.0, 1500)
    assert sum(depth * 0.2 for depth in bad[100:]) < 0.02 * 1400
    good = run(policy, MODEL, 1.0, 300)
    tried = good.index(2)
    assert min(good[tried : tried + 30]) == 2, "successful trials follow one another"
    assert min(good[tried + 30 :]) >= 4


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_drafter_that_ends_early_is_granted_its_full_depth_with_a_stopping_rule(ends_early: bool) -> None:
    """On average only two levels pay. Where it is confident it goes on, so that acceptance of deeper levels is learnt too."""
    policy, part = adaptive_with({1: 1.0, 8: 2.0}, 0.1), replace(MODEL, ends_early=ends_early)
    held = [0.95, 0.95, 0.25, 0.95, 0.95, 0.25]
    for _ in range(100):
        teach(policy, 0, DraftTree.chain(3, [5] * 6, "model", confidences=held), [5, 5, 7])
    (budget,) = policy.budgets(part, [sequence()], [DraftTree.root(3)])
    assert budget.depth == budget.nodes == (6 if ends_early else 2)
    assert budget.stopping is not None
    assert len(budget.stopping.least) == budget.depth - 1


def test_no_more_than_a_few_trials_are_saved_up_while_none_is_needed() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.2}, 0.2)
    assert all(run(policy, MODEL, 1.0, 3000)[-100:])
    assert sum(map(bool, run(policy, MODEL, 0.0, 100)[40:])) < 15


def test_another_request_does_not_inherit_a_failure_for_long() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.2}, 0.1)
    run(policy, MODEL, 0.0, 400, key=1)
    policy.release(1)
    policy.acceptance.release(1)
    assert run(policy, MODEL, 1.0, 60, key=2)[-1] >= 4


def test_a_look_up_that_brings_nothing_is_asked_ever_more_rarely_and_comes_back() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.2})
    for depth in range(1, 7):
        policy.costs.measured("ngram", depth, 1, 0.3)
    asked = run(policy, LOOKUP, 0.0, 1000)
    assert sum(map(bool, asked[500:])) * 0.3 < 0.015 * 500, "no more than its share of the time"
    back = run(policy, LOOKUP, 1.0, 200)
    assert all(back[-50:])


@pytest.mark.parametrize(("found_every", "at_least"), [(1, 1.0), (30, 0.95), (100, 0.7)])
def test_a_look_up_that_finds_much_now_and_then_is_asked_in_between(found_every: int, at_least: float) -> None:
    """A find lasts for some steps, and gains far more than a hundred failed calls cost."""
    policy, asked = adaptive_with({1: 1.0, 8: 1.2}), []
    for depth in range(1, 7):
        policy.costs.measured("ngram", depth, 1, 0.03)
    for step in range(6 * found_every + 300):
        there = step % found_every < 3
        asked += map(bool, run(policy, LOOKUP, 1.0 if there else -1.0, 1))
    assert sum(asked[-3 * found_every :]) >= at_least * 3 * found_every


def test_a_look_up_that_was_never_timed_is_asked_again() -> None:
    """The cost of a call is known from the second draft on: one failed call does not show whether it pays."""
    policy = adaptive_with({1: 1.0, 8: 1.2})
    del policy.costs.drafts["ngram"]
    assert all(run(policy, LOOKUP, -1.0, 3))
    # timed within a step that asks it
    policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
    policy.costs.measured("ngram", 6, 1, 0.03)
    policy.observe([sequence()], [DraftTree.root(3)], [Verdict((), (7,), 0)], STEP)
    assert all(run(policy, LOOKUP, -1.0, 10)), "and it starts with its credit then"


def test_a_pause_is_a_share_of_a_sequence_s_time_however_many_tokens_a_step_brings() -> None:
    pauses = []
    for tokens in (1, 5):
        policy = adaptive_with({1: 1.0, 8: 1.2})
        for _ in range(100):
            policy.begin(1, 1)
            policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
            emitted = tuple(range(10, 10 + tokens))
            tree = DraftTree.chain(3, emitted[:-1], "other") if tokens > 1 else DraftTree.root(3)
            policy.observe([sequence()], [tree], [Verdict(tuple(range(1, tokens)), emitted, tokens - 1)], STEP)
        pauses.append(policy._lookup_values._pause(0.6, 0.03))
    assert pauses[0] == pytest.approx(20, abs=1)
    # as a share of the step's time, which a few rows make longer
    assert 14 <= pauses[1] <= 20


def test_a_lookup_is_not_charged_for_a_draft_of_another_drafter() -> None:
    policy = adaptive_with({1: 1.0, 8: 4.0})
    policy._step_time.draft_overhead_s = 0.5
    policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
    before = policy._lookup_values._values["ngram"][0].gain_s
    policy.observe([sequence()], [DraftTree.chain(3, [5, 5], "model")], [Verdict((), (7,), 0)], STEP)
    assert 0.0 < policy._lookup_values._values["ngram"][0].gain_s < before


def test_a_drafter_that_promised_too_much_must_be_surer_to_go_on() -> None:
    """The threshold is scaled for a whole draft, not for each of its levels."""
    least = []
    for factor in (1.0, 0.5):
        policy = adaptive_with({1: 1.0, 8: 1.5}, 0.05)
        for _ in range(30):
            teach(policy, 1, DraftTree.chain(3, [5] * 6, "model"), [5] * 6 + [7])
        policy._calibration._factors["model"] = factor
        (budget,) = policy.budgets(MODEL, [sequence(1)], [DraftTree.root(3)])
        assert budget.stopping is not None
        assert budget.stopping.odds == policy.acceptance.odds(1, "model")
        least.append(budget.stopping.least[0])
    assert least[1] == pytest.approx(2 * least[0])


def test_a_shared_prefix_counts_as_read_by_the_drafter_of_the_forked_request() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.05}, 0.01)
    for _ in range(30):
        teach(policy, 0, DraftTree.chain(3, [5] * 6, "model"), [5] * 6 + [7])
    source, sharing, other = (Sequence(key, (1, 2, 3, 4) * 500, SamplingParams(), 0) for key in range(3))
    policy.budgets(MODEL, [source], [DraftTree.root(4)])
    policy.costs.reading["model"] = 1.0
    # decisions made while reading cost nothing no longer hold
    policy._decision_caches.clear()
    policy.fork(0, 1, 1990)
    policy.release(0)
    assert policy._search.reading_s(MODEL, sharing) == pytest.approx(10.0)
    assert policy.budgets(MODEL, [sharing], [DraftTree.root(4)])[0].some
    assert policy.budgets(MODEL, [other], [DraftTree.root(4)]) == [NOTHING]


def test_a_policy_is_told_of_a_shared_beginning_before_its_source_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, told = engine_of(TableModel(5), limits=Limits(shortest_prefix=4)), []
    policy, prompt = engine.speculative.policy, [n * n % 5 for n in range(30)]
    monkeypatch.setattr(policy, "fork", lambda *which: told.append(which))
    monkeypatch.setattr(policy, "release", told.append)
    for _ in range(2):
        engine.add(prompt, SamplingParams(max_tokens=3, ignore_eos=True))
        while engine.has_work:
            engine.step()
    assert told == [(0, 1, 29), 0]


def test_only_sequences_of_a_batch_for_which_drafts_pay_are_drafted_for() -> None:
    policy = adaptive_with({1: 1.0, 4: 1.1, 8: 2.4, 16: 5.0}, 0.01)
    for _ in range(30):
        teach(policy, 1, DraftTree.chain(3, [5] * 4, "model"), [5] * 4 + [7])
        teach(policy, 2, DraftTree.chain(3, [5] * 4, "model"), [7])
    policy.begin(2, 2)
    budgets = policy.budgets(MODEL, [sequence(1), sequence(2)], [DraftTree.root(3)] * 2)
    assert budgets[0].depth > 0
    assert budgets[1] == NOTHING


def test_a_model_is_not_asked_for_what_a_look_up_has_found() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.3}, 0.1)
    for _ in range(30):
        teach(policy, 1, DraftTree.chain(3, [5] * 6, "model"), [5, 5, 5, 7])
    plain = policy.budgets(MODEL, [sequence(1)], [DraftTree.root(3)])[0]
    found = DraftTree.chain(3, [5] * 6, "ngram", confidences=[0.99] * 6)
    assert plain.depth >= 2
    assert policy.budgets(MODEL, [sequence(1)], [found])[0] == NOTHING


def test_a_lookup_is_charged_with_the_model_draft_that_it_displaces() -> None:
    """The model, whose draft would have gained much, is no longer asked: the lookup is credited with the difference."""
    found = DraftTree.chain(3, [5] * 6, "ngram", confidences=[0.99] * 6)
    gains = {}
    for brings in (0, 3):
        policy = adaptive_with({1: 1.0, 8: 1.1}, 0.07)
        for _ in range(30):
            teach(policy, 0, DraftTree.chain(3, [5] * (brings + 1), "model"), [5] * brings + [7], granted=6)
        policy.budgets(MODEL, [sequence()], [DraftTree.root(3)])
        for _ in range(20):
            policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
            assert policy.budgets(MODEL, [sequence()], [found])[0] == NOTHING
            policy.observe([sequence()], [found], [Verdict((1, 2, 3, 4, 5, 6), (5,) * 6 + (7,), 6)], STEP)
        gains[brings] = policy._lookup_values._usual["ngram"] / policy._lookup_values.token_s
    assert 0.0 < gains[3] < gains[0] - 0.5, gains


@st.composite
def rated(draw: st.DrawFn) -> DraftTree:
    tokens, parents = [9], [-1]
    for token in range(draw(st.integers(1, 6))):
        tokens.append(token)
        parents.append(draw(st.integers(0, len(parents) - 1)))
    confidences = [1.0, *[draw(st.floats(0.05, 0.95)) for _ in tokens[1:]]]
    return DraftTree(tuple(tokens), tuple(parents), confidences=tuple(confidences))


def chances(tree: DraftTree) -> list[float]:
    found = [1.0]
    for node in range(1, len(tree)):
        found.append(found[tree.parents[node]] * tree.confidences[node])
    return found


@given(rated(), rated(), st.floats(0.01, 1.0))
def test_trimming_keeps_the_nodes_that_bring_the_most_tokens_per_second(left: DraftTree, right: DraftTree, row_s: float) -> None:
    policy = adaptive_with({rows: 1.0 + row_s * rows for rows in range(1, 20)})
    sequences = [sequence(1), sequence(2)]
    policy.begin(2, 2)
    policy.budgets(LOOKUP, sequences, [left, right])
    kept = policy.trimmed(sequences, [left, right])

    def rate(tokens: float, rows: int) -> float:
        return tokens / (1.0 + row_s * rows)

    ours = rate(sum(sum(chances(tree)) for tree in kept), sum(map(len, kept)))
    # a set of nodes with its ancestors is never worse than one without, so all subsets may be compared
    pool = sorted((chance for tree in (left, right) for chance in chances(tree)[1:]), reverse=True)
    best = max(rate(2 + sum(some), 2 + count) for count in range(len(pool) + 1) for some in combinations(pool, count))
    if sum(map(len, kept)) == 2:
        # drafts hardly better than none are dropped
        assert best <= CLEARLY * ours * (1 + 1e-9)
    else:
        assert ours == pytest.approx(best)


def test_overconfident_drafts_are_trimmed_and_now_and_then_shown_again() -> None:
    policy = adaptive_with({1: 1.0, 8: 2.0})
    promising = DraftTree.chain(3, [5, 5], "ngram", confidences=[0.6, 0.6])
    kept = []
    for _ in range(400):
        policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
        (tree,) = policy.trimmed([sequence()], [promising])
        kept.append(len(tree) > 1)
        policy.observe([sequence()], [tree], [Verdict((), (7,), 0)], STEP)
    assert kept[0]
    assert 1 <= sum(kept[100:]) < 60


def test_before_any_draft_steps_with_drafts_are_taken_to_cost_what_steps_without_do() -> None:
    policy = adaptive_with({1: 1.0, 8: 8.0}, 0.5)
    slow = Timings(0.0, 1.0, 0.4, 0.0)
    # steps without drafts are learnt from one in eight
    for _ in range(1600):
        policy.begin(1, 1)
        if not policy.skips_drafting([sequence()]):
            policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
        policy.observe([sequence()], [DraftTree.root(3)], [Verdict((), (7,), 0)], slow)
    assert policy._step_time.step_s(1, True) == policy._step_time.step_s(1, False) > 1.3
    for _ in range(200):
        policy.begin(1, 1)
        tree = DraftTree.chain(3, [5], "model")
        policy.observe([sequence()], [tree], [Verdict((), (7,), 0)], Timings(0.0, 1.0, 0.7, 0.0))
    assert policy._step_time.step_s(1, True) > 1.6 > policy._step_time.step_s(1, False), "it is learnt only by drafting"


def test_in_calm_steps_drafts_are_thought_about_in_one_of_eight_and_for_whoever_is_new() -> None:
    policy = adaptive_with({1: 1.0, 8: 8.0})

    def thinks(key: int) -> bool:
        policy.begin(1, 1)
        skips = policy.skips_drafting([sequence(key)])
        policy.observe([sequence(key)], [DraftTree.root(3)], [Verdict((), (7,), 0)], STEP)
        return not skips

    assert [thinks(0) for _ in range(40)].count(True) == pytest.approx(40 / 8 + 3, abs=1)
    # between two considerations
    while not thinks(0):
        pass
    assert [thinks(0), thinks(0), thinks(1), thinks(1)] == [False, False, True, False]


class Cold:
    """Steps are slower for a while after a draft was asked for: 1.3 beside their forward instead of 0.05."""

    def __init__(self, tokens: int) -> None:
        """tokens: emitted by every step with a draft."""
        self.policy, self.tokens, self.since = adaptive_with({1: 1.0, 8: 1.05}), tokens, 0

    def step(self) -> bool:
        """Whether a drafter was asked."""
        policy, one, tree = self.policy, sequence(), DraftTree.root(3)
        policy.begin(1, 1)
        (budget,) = [NOTHING] if policy.skips_drafting([one]) else policy.budgets(LOOKUP, [one], [tree])
        self.since = 0 if budget.some else self.since + 1
        if budget.some:
            drafted = DraftTree.chain(3, [5] * self.tokens, "ngram")
            (tree,) = policy.trimmed([one], [policy.acceptance.rated(0, drafted)])
            policy.acceptance.observe(0, drafted, [5] * (self.tokens - 1) + [7])
        accepted = min(self.tokens - 1, len(tree) - 1)
        timings = Timings(1e-6 * budget.some, 1.0, 0.05 if self.since > 2 else 1.3, 0.0, 1e-6 * budget.some)
        policy.observe([one], [tree], [Verdict(tuple(range(1, accepted + 1)), (*[5] * accepted, 7), accepted)], timings)
        return budget.some


def test_drafts_that_lose_to_a_run_of_plain_steps_are_given_up() -> None:
    """A step with a draft emits two tokens in 2.3 seconds, one without emits one in 1.05; but between drafts, in 2.3."""
    machine = Cold(tokens=2)
    machine.policy._step_time.overhead_s = 0.26
    for _ in range(40):
        teach(machine.policy, 0, DraftTree.chain(3, [5, 5], "ngram"), [5, 7])
    asked = [machine.step() for _ in range(6000)]
    assert any(asked[:20])
    assert sum(asked[1500:]) < 0.1 * 4500


def test_drafts_that_beat_a_run_of_plain_steps_go_on_in_nearly_all_steps() -> None:
    machine = Cold(tokens=4)
    asked = [machine.step() for _ in range(3000)]
    assert sum(asked[500:]) > 0.98 * 2500


def test_calibration_records_decay_during_pauses_too() -> None:
    machine = Cold(tokens=2)
    pauses, calibration = machine.policy._draft_pauses, machine.policy._calibration
    while not pauses._left:
        machine.step()
    calibration._records["model"] = _Record(4.0, 40.0)
    steps = pauses._left + 40
    for _ in range(steps):
        machine.step()
    assert calibration._records["model"].expected == pytest.approx(40.0 * 0.995**steps, rel=0.1)


@pytest.mark.parametrize(("behind_s", "looked_at"), [(0.1, 1), (0.8, 0)])
def test_a_draft_is_shown_only_if_it_is_worth_the_work_behind_its_forward(behind_s: float, looked_at: int) -> None:
    """The work is to verify it, to move its keys and to learn from it; a row costs little, and drafting is already paid for."""
    policy = adaptive_with({1: 1.0, 2: 1.02, 8: 1.1})
    policy._step_time._behind_s, policy._step_time.draft_overhead_s = [0.02, 0.02], 0.2
    for _ in range(50):
        policy._step_time.saw_behind(0.1, False, 1)
        policy._step_time.saw_behind(behind_s, True, 1)
    policy.begin(1, 1)
    (tree,) = policy.trimmed([sequence()], [DraftTree.chain(3, [5], "ngram", confidences=[0.3])])
    assert len(tree) - 1 == looked_at


def test_an_overestimated_time_behind_drafts_is_corrected_though_no_draft_is_shown() -> None:
    """A machine that was disturbed for a while must not stop drafts from being verified forever."""
    policy, looked_at = adaptive_with({1: 1.0, 2: 1.02, 8: 1.1}), list[bool]()
    policy._step_time._behind_s, policy._step_time.draft_overhead_s = [0.02, 0.6], 0.58
    for _ in range(1500):
        one, tree = sequence(), DraftTree.root(3)
        policy.begin(1, 1)
        (budget,) = [NOTHING] if policy.skips_drafting([one]) else policy.budgets(LOOKUP, [one], [tree])
        if budget.some:
            found = DraftTree.chain(3, [5], "ngram", confidences=[0.6])
            (tree,) = policy.trimmed([one], [policy.acceptance.rated(0, found)])
            policy.acceptance.observe(0, found, [5, 7])
        accepted = len(tree) - 1
        looked_at.append(accepted > 0)
        verdict = Verdict(tuple(range(1, accepted + 1)), (*[5] * accepted, 7), accepted)
        policy.observe([one], [tree], [verdict], Timings(1e-6, 1.0, 0.05, 0.05, 1e-6 * budget.some))
    assert not any(looked_at[:20])
    assert sum(looked_at[1000:]) > 400


def halves_drafted_in(policy: Policy, key: int, since: int) -> tuple[list[int], int]:
    """The number of steps with drafts in each half of an answer: in the first forty steps one right token is offered, in forty
    more four; a step takes 1.2 beside its forward instead of 0.05 for a while after drafts were asked for."""
    drafted = [0, 0]
    for half, (tokens, held) in enumerate(((1, 0.6), (4, 0.95))):
        for _ in range(40):
            one, tree = sequence(key), DraftTree.root(3)
            policy.begin(1, 1)
            (budget,) = [NOTHING] if policy.skips_drafting([one]) else policy.budgets(LOOKUP, [one], [tree])
            since = 0 if budget.some else since + 1
            if budget.some:
                found = DraftTree.chain(3, [5] * tokens, "ngram", confidences=[held] * tokens)
                (tree,) = policy.trimmed([one], [policy.acceptance.rated(key, found)])
                policy.acceptance.observe(key, found, [5] * tokens + [7])
            accepted = len(tree) - 1
            drafted[half] += accepted > 0
            beside_s = 0.05 if since > 2 else 1.2
            timings = Timings(1e-6 * budget.some, 1.0, beside_s, 0.1 * (accepted > 0), 1e-6 * budget.some)
            verdict = Verdict(tuple(range(1, accepted + 1)), (*[5] * accepted, 7), accepted)
            policy.observe([one], [tree], [verdict], timings)
    return drafted, since


def test_drafts_are_compared_with_plain_steps_that_follow_plain_steps() -> None:
    """Over whole answers drafts win; where they emit two tokens in 2.3 seconds, and a plain step one in 1.05, they lose."""
    policy, since, seen = adaptive_with({1: 1.0, 8: 1.05}), 0, []
    policy._step_time.overhead_s, policy._step_time._behind_s = 0.26, [0.26, 0.26]
    for key in range(12):
        drafted, since = halves_drafted_in(policy, key, since)
        seen.append(drafted)
        policy.release(key)
    assert seen[0][0] > 30, "the first answer, before plain steps were timed"
    assert all(poor < 5 and rich > 25 for poor, rich in seen[6:])


def test_a_pause_of_drafts_holds_only_for_batches_of_its_size() -> None:
    machine = Cold(tokens=2)
    while not machine.policy._draft_pauses._left:
        machine.step()
    machine.policy.begin(8, 8)
    assert not machine.policy.skips_drafting([sequence(key) for key in range(8)])
    machine.policy.begin(1, 1)
    assert machine.policy.skips_drafting([sequence()])


def test_steps_of_other_batch_sizes_do_not_count_towards_a_pause() -> None:
    """Steps of other batch sizes, and what is learnt from them, do not count."""
    machine = Cold(tokens=2)
    while not machine.policy._draft_pauses._left:
        machine.step()
    policy, left, others = machine.policy, machine.policy._draft_pauses._left, [sequence(key) for key in range(8)]
    for step in range(1, left):
        machine.step()
        if step % 3 == 0:
            policy.begin(8, 8)
            policy.skips_drafting(others)
            policy.observe(others, [DraftTree.root(3)] * 8, [Verdict((), (7,))] * 8, STEP)
    assert policy._draft_pauses_at[1]._left == 1
    machine.step()
    assert not policy._draft_pauses_at[1].active


def test_one_paused_step_in_four_is_learnt_from() -> None:
    """Otherwise outdated costs would keep drafts paused."""
    machine = Cold(tokens=2)
    while not machine.policy._draft_pauses._left:
        machine.step()
    policy, learnt = machine.policy, 0
    for _ in range(40):
        policy.begin(1, 1)
        assert policy.skips_drafting([sequence()])
        learnt += policy.learns
        policy.observe([sequence()], [DraftTree.root(3)], [Verdict((), (7,))], STEP)
    assert learnt == pytest.approx(40 / 4, abs=1)


def test_a_step_that_only_reads_prompts_teaches_nothing_and_takes_no_lesson() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.05})
    policy._learning_interval.mean_steps = policy._learning_interval._next = 2
    learnt_from = []
    for _ in range(20):
        policy.begin(16, 0)
        assert not policy.learns
        policy.observe([], [], [], STEP)
        policy.begin(1, 1)
        learnt_from.append(policy.learns)
        policy.observe([sequence()], [DraftTree.root(3)], [Verdict((), (7,))], STEP)
    assert sum(learnt_from) >= 10


def test_drafts_are_considered_at_once_for_a_request_with_a_reference_in_a_crowd() -> None:
    policy, crowd = adaptive_with({1: 1.0, 16: 16.0}), [sequence(key) for key in range(16)]
    bringing = Sequence(16, (1, 2, 3), SamplingParams(), 0, reference=(4, 5))

    def thinks(batch: list[Sequence]) -> bool:
        policy.begin(len(batch), len(batch))
        skips = policy.skips_drafting(batch)
        policy.observe(batch, [DraftTree.root(3)] * len(batch), [Verdict((), (7,))] * len(batch), STEP)
        return not skips

    for other, thought in ((sequence(16), False), (bringing, True)):
        while thinks(crowd):
            pass
        assert thinks([*crowd[1:], other]) is thought


def test_a_request_with_a_reference_is_drafted_for_in_a_pause_while_its_lookups_pay() -> None:
    machine = Cold(tokens=2)
    while not machine.policy._draft_pauses._left:
        machine.step()
    policy = machine.policy
    bringing = Sequence(7, (1, 2, 3), SamplingParams(), 0, reference=(4, 5))
    policy.begin(1, 1)
    assert policy.skips_drafting([sequence()])
    assert not policy.skips_drafting([sequence(), bringing])
    policy.costs.measured("reference", 8, 1, 0.05)
    policy.budgets(DrafterInfo("reference", Budget(8, 8), refers=True), [bringing], [DraftTree.root(3)])
    assert not policy.skips_drafting([bringing])
    policy._lookup_values._values["reference"][7].next_asked = policy._steps + 9
    assert policy.skips_drafting([bringing])


def test_a_step_beside_a_request_that_names_its_drafters_is_no_pause_and_is_learnt_from() -> None:
    """In such a step the policy is not asked whether to pause, and drafters draft."""
    machine = Cold(tokens=2)
    while not machine.policy._draft_pauses.active:
        machine.step()
    policy, one = machine.policy, sequence()
    before, updated = {**vars(policy._draft_pauses)}, policy._lookup_values._values["ngram"][0].updated
    for _ in range(20):
        policy.begin(1, 1)
        policy.budgets(LOOKUP, [one], [DraftTree.root(3)])
        drafted = DraftTree.chain(3, [5, 5], "ngram", confidences=[0.9, 0.9])
        policy.observe([one], [drafted], [Verdict((1, 2), (5, 5, 7), 2)], Timings(1e-6, 1.0, 0.05, 0.0, 1e-6))
    assert vars(policy._draft_pauses) == before, "and the pause is unchanged"
    assert policy._lookup_values._values["ngram"][0].updated > updated + 15


def test_trials_whose_drafts_are_trimmed_away_stay_within_their_share_of_time() -> None:
    """Drafts with a high expected gain and low actual confidences: rows are costly, drafting is cheap."""
    policy = adaptive_with({1: 1.0, 2: 1.9, 8: 8.0}, 0.1)
    asked_s = 0.0
    for _ in range(2000):
        (budget,) = policy.budgets(MODEL, [sequence()], [DraftTree.root(3)])
        asked_s += 0.1 * budget.depth
        tree = DraftTree.root(3)
        if budget.depth:
            drafted = DraftTree.chain(3, [5] * budget.depth, "model", confidences=[0.05] * budget.depth)
            teach(policy, 0, drafted, [7])
            (tree,) = policy.trimmed([sequence()], [drafted])
            assert len(tree) == 1
        policy.observe([sequence()], [tree], [Verdict((), (7,), 0)], STEP)
    assert 0.0 < asked_s < 0.015 * 2000


def test_probes_are_not_trimmed() -> None:
    policy = adaptive_with({1: 1.0, 8: 20.0})
    window = DraftTree((9, 1, 2), (-1, 0, 0), confidences=(1.0, 0.1, 0.1), probes=1)
    policy.budgets(LOOKUP, [sequence()], [window])
    assert policy.trimmed([sequence()], [window])[0].tokens == (9, 2)


def test_a_draft_beside_probes_adds_its_rows_all_the_same() -> None:
    """Better nodes replace a lookup's candidates, but not its probes."""
    points = {1: 1.0, 4: 1.05, 5: 1.06, 6: 2.5, 12: 8.5}
    probes = DraftTree((3, 1, 2, 4, 6), (-1, 0, 0, 0, 0), confidences=(1.0, *[0.1] * 4), probes=4)
    depths = []
    for tree in (DraftTree.root(3), probes):
        policy = adaptive_with(points, 0.01)
        for _ in range(30):
            teach(policy, 1, DraftTree.chain(3, [5] * 4, "model"), [5, 7])
        depths.append(policy._search.best(MODEL, [sequence(1)], [tree])[0])
    assert depths[0] > 0
    assert depths[1] == 0, "behind four probes a row costs more than it gains"


def test_the_worth_of_a_token_is_learnt_per_batch_size() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.6})
    worth = []
    for batch in (1, 8, 1):
        for _ in range(100):
            policy.begin(batch, batch)
            ones = [sequence(key) for key in range(batch)]
            policy.observe(ones, [DraftTree.root(3)] * batch, [Verdict((), (7,), 0)] * batch, STEP)
            worth.append(policy._step_time.token_s)
    assert worth[199] < 0.3 * worth[99]
    assert worth[200] == pytest.approx(worth[99], rel=0.05)


def test_a_row_is_never_worth_less_than_nothing() -> None:
    """Where measured times fall with more rows, the cost of a row beside a prompt would be negative."""
    policy = adaptive_with({1: 1.0, 40: 8.0, 41: 6.0})
    for _ in range(200):
        policy.begin(40, 1)
        policy.observe([sequence()], [DraftTree.root(3)], [Verdict((), (7,), 0)], STEP)
    assert policy._step_time.token_s >= 0.0


@pytest.mark.parametrize(
    ("length", "failing", "accepted", "after"),
    [
        (7, False, [7, 2], (9, False)),
        (31, True, [31], (32, False)),
        (7, False, [3, 2], (6, True)),
        (7, True, [3, 2], (5, True)),
        (7, True, [6, 2], (6, True)),
        (1, True, [0], (1, True)),
        (20, False, [0], (18, True)),
        (20, True, [0], (17, True)),
    ],
)
def test_bass_adapts_its_draft_length_by_the_published_rule(
    length: int, failing: bool, accepted: list[int], after: tuple[int, bool]
) -> None:
    assert bass.next_length(length, length, failing, accepted, bass.Options()) == after


def test_bass_grants_one_length_to_all_and_learns_from_the_best() -> None:
    policy = bass.build(bass.Options(first=4))
    pair = [sequence(1), sequence(2)]
    trees, drafted = [DraftTree.root(3)] * 2, [DraftTree.chain(3, [5] * 4, "model")] * 2
    assert [budget.depth for budget in policy.budgets(MODEL, pair, trees)] == [4, 4]
    policy.observe(pair, drafted, [Verdict((), (5,) * 5, 4), Verdict((), (7,), 0)], STEP)
    assert policy.budgets(MODEL, pair, trees)[0].depth == 6
    with pytest.raises(ValueError, match="limit"):
        bass.Options(first=10, limit=5)


def test_bass_learns_from_what_was_drafted_however_much_was_granted() -> None:
    policy = bass.build(bass.Options(first=4))
    pair, nothing = [sequence(1), sequence(2)], [DraftTree.root(3)] * 2
    short = [DraftTree.chain(3, [5, 5], "ngram"), DraftTree.root(3)]
    for _ in range(10):
        policy.budgets(LOOKUP, pair, nothing)
        policy.observe(pair, nothing, [Verdict((), (7,), 0)] * 2, STEP)
    assert policy.length == 4
    policy.budgets(LOOKUP, pair, nothing)
    policy.observe(pair, short, [Verdict((1, 2), (5, 5, 7), 2), Verdict((), (7,), 0)], STEP)
    assert policy.length == 6
    policy.budgets(LOOKUP, pair, nothing)
    policy.observe(pair, short, [Verdict((1,), (5, 7), 1), Verdict((), (7,), 0)], STEP)
    assert policy.length == 5


def test_confidence_stops_drafts_and_leaves_doubtful_nodes_out() -> None:
    policy = confidence.build(confidence.Options(threshold=0.4))
    assert policy.budgets(MODEL, [sequence()], [DraftTree.root(3)]) == [Budget(6, 6, 0.4)]
    assert policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)]) == [LOOKUP.budget], (
        "the stopping rule follows the model's confidence, not the lookup's"
    )
    tree = DraftTree((9, 1, 2, 3, 4), (-1, 0, 1, 0, 3), confidences=(1.0, 0.9, 0.3, 0.2, 0.9))
    assert policy.trimmed([sequence()], [tree])[0].tokens == (9, 1)
    mixed = DraftTree((9, 1, 2, 3), (-1, 0, 1, 0), sources=("", "model", "model", "ngram"), confidences=(1.0, 0.9, 0.3, 0.2))
    assert policy.trimmed([sequence()], [mixed])[0].tokens == (9, 1, 2), "a model ends its drafts itself"


def test_rows_beside_a_prompt_are_drafted_only_as_far_as_they_cost_less_than_the_time_they_save() -> None:
    """There the step is long anyway, so that any token would raise its rate; and rows cost their full price."""
    policy = adaptive_with({1: 1.0, 8: 1.1, 16: 2.0, 48: 18.0}, 0.01)
    for _ in range(30):
        teach(policy, 1, DraftTree.chain(3, [5] * 4, "model"), [5] * 4 + [7])
        policy.observe([sequence(1)], [DraftTree.root(3)], [Verdict((), (7,), 0)], STEP)
    doubtful = DraftTree.chain(3, [5] * 4, "model", confidences=[0.9, 0.4, 0.4, 0.4])
    depths, kept = [], []
    for rows in (1, 40):
        policy.begin(rows, 1)
        depths.append(policy.budgets(MODEL, [sequence(1)], [DraftTree.root(3)])[0].depth)
        kept.append(len(policy.trimmed([sequence(1)], [doubtful])[0]))
    assert depths[0] >= depths[1] > 0
    assert kept == [5, 2]
    policy.begin(1, 1)
    assert policy.budgets(MODEL, [sequence(1)], [DraftTree.root(3)])[0].depth == depths[0], "decisions beside a prompt end"


def test_where_every_step_reads_a_prompt_a_token_saves_its_row_and_no_step() -> None:
    """So a draft must be nearly certain there; where prompts are rare, a saved step has no prompt beside it."""
    row_s = 0.4
    policy = adaptive_with({1: 1.0, 8: 1.1, 16: 2.0, 48: 2.0 + 32 * row_s}, 0.01)
    doubtful = DraftTree.chain(3, [5] * 2, "model", confidences=[0.8, 0.8])

    def kept(reading: int, steps: int = 60) -> int:
        for number in range(steps):
            policy.begin(40 if number % reading == 0 else 1, 1)
            policy.observe([sequence()], [DraftTree.root(3)], [Verdict((), (7,), 0)], STEP)
        policy.begin(40, 1)
        return len(policy.trimmed([sequence()], [doubtful])[0])

    assert kept(reading=20) == 3
    assert kept(reading=1) == 1
    assert policy._step_time.token_s == pytest.approx(row_s, rel=0.1)
    assert kept(reading=20) == 3, "and back"


def test_overconfidence_is_calibrated_per_drafter() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.8})
    boastful = DraftTree.chain(3, [5, 5], "ngram", confidences=[0.9, 0.9])
    modest = DraftTree.chain(3, [5, 5], "suffix", confidences=[0.5, 0.5])
    for _ in range(60):
        policy.observe([sequence()], [boastful], [Verdict((), (7,), 0)], STEP)
        policy.observe([sequence()], [modest], [Verdict((1, 2), (5, 5, 7), 2)], STEP)
    calibration = policy._calibration
    assert calibration.factor("ngram") < 0.2
    assert calibration.factor("suffix") == calibration.factor("never seen") == 1.0
    both = DraftTree((3, 5, 6), (-1, 0, 1), sources=("", "ngram", "suffix"), confidences=(1.0, 0.9, 0.9))
    assert calibration.chances(both)[2] == calibration.chances(both)[1] < 0.2, "no node is likelier than its parent"
    policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
    assert len(policy.trimmed([sequence()], [boastful])[0]) == 1
    assert len(policy.trimmed([sequence()], [modest])[0]) > 1


def test_what_a_stop_cut_says_nothing_of_drafts() -> None:
    policy = adaptive_with({1: 1.0, 8: 1.2})
    tree = DraftTree.chain(3, [5, 5, 5], "ngram", confidences=[0.9] * 3)
    policy.observe([sequence()], [tree], [Verdict((1,), (5,), 3, "stop")], STEP)
    assert policy._calibration.factor("ngram") == 1.0


def test_a_lookups_gain_counts_a_token_at_its_time_in_this_batch() -> None:
    """Alone, a lookup that is right half of the time pays; in a batch of eight, where a token takes an eighth, it does not."""
    tree = DraftTree.chain(3, [5], "ngram", confidences=[0.5])

    def brought(batch: int) -> float:
        policy = adaptive_with({1: 1.0, 8: 1.2, 16: 2.4})
        sequences = [sequence(key) for key in range(batch)]
        for _ in range(3):
            policy.begin(batch, batch)
            policy.budgets(LOOKUP, sequences, [DraftTree.root(3)] * batch)
            policy.observe(sequences, [tree] * batch, [Verdict((), (7,), 0)] * batch, STEP)
        return policy._lookup_values._values["ngram"][batch - 1].gain_s

    assert brought(1) > 0.0 > brought(8)


def test_look_ups_answer_for_what_drafts_take_beside_them() -> None:
    """Verifying drafts takes longer than verifying roots; the lookup that proposed them is charged for that."""
    dear, cheap = (adaptive_with({1: 1.0, 8: 1.2}) for _ in range(2))
    tree = DraftTree.chain(3, [5], "ngram", confidences=[0.5])
    for policy, beside_s in ((dear, 2.0), (cheap, 0.0)):
        for step in range(600):
            drafted = tree if step % 2 else DraftTree.root(3)
            policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
            timings = Timings(0.0, 1.0, 0.01 + beside_s * (step % 2), 0.0)
            policy.observe([sequence()], [drafted], [Verdict((), (7,), 0)], timings)
    assert cheap._lookup_values._usual["ngram"] > 0.0 > dear._lookup_values._usual["ngram"]


def test_a_displaced_draft_is_charged_to_several_lookups_by_their_nodes() -> None:
    tree = DraftTree(
        (3, 5, 6, 7, 8), (-1, 0, 1, 2, 0), sources=("", *["suffix"] * 3, "ngram"), confidences=(1.0, 0.9, 0.9, 0.9, 0.1)
    )
    lookup_values = adaptive_with({1: 1.0, 8: 1.0})._lookup_values
    lookup_values.token_s = 1.0
    parts = [DrafterInfo(name, Budget(6, 6)) for name in ("suffix", "ngram")]
    gains = []
    for forgone_s in (0.0, 1.0):
        for part in parts:
            lookup_values._costs.measured(part.name, 6, 1, 1e-6)
            lookup_values._values.pop(part.name, None)
            lookup_values.budgets(part, [sequence()], 0, True)
        lookup_values.update([sequence()], [tree], {}, {0: forgone_s}, lambda: 0.0, 10)
        lookup_values.forget_asked()
        # the first account has weight one half
        gains.append([lookup_values._values[part.name][0].gain_s for part in parts])
    lost = [2 * (before - after) for before, after in zip(*gains, strict=True)]
    assert lost == pytest.approx([0.75, 0.25], rel=0.01)


def test_drafts_end_where_a_level_takes_longer_than_what_it_brings() -> None:
    """The costlier a level, the likelier its path must be; where levels are free, only the budget ends a draft."""
    least = {}
    for level_s in (0.0, 0.05, 0.1):
        policy = adaptive_with({1: 1.0, 8: 1.0 + 7 * level_s}, level_s)
        for _ in range(30):
            teach(policy, 1, DraftTree.chain(3, [5] * 6, "model"), [5] * 6 + [7])
        (budget,) = policy.budgets(MODEL, [sequence(1)], [DraftTree.root(3)])
        assert budget.depth == 6
        assert budget.stopping is not None
        least[level_s] = budget.stopping.least
    assert least[0.0] == pytest.approx([0.0] * 5)
    assert all(0.0 < cheap < dear < 1.0 for cheap, dear in zip(least[0.05], least[0.1], strict=True))
    # a level and its row take a fifth of a token's time
    assert least[0.1] == pytest.approx([0.2] * 5, rel=0.3)


def test_sequences_with_named_drafters_count_towards_the_batch_of_a_decision() -> None:
    """One of two names its drafters: the decision for the other is made for a step of two, not for one with a prompt."""

    def granted(asked: int) -> list[Budget]:
        policy = adaptive_with(curve, 0.01)
        policy.begin(2, 2)
        pair = [sequence(1), sequence(2)][:asked]
        return policy.budgets(MODEL, pair, [DraftTree.root(3)] * asked)

    # the third row makes drafting a loss in a step of two tokens, but not in a step of one
    for third in (1.9, 1.3):
        curve = {1: 1.0, 2: 1.0, 3: third, 16: 18.0}
        alone = adaptive_with(curve, 0.01)
        assert alone.budgets(MODEL, [sequence(1)], [DraftTree.root(3)])[0].some, "alone a second row is free"
        assert granted(1) == [NOTHING]
        assert granted(2) == [NOTHING] * 2


def test_probes_cost_what_rows_cost() -> None:
    """A lookup that fills the forward with probes is charged for them, even if it proposes little."""
    gains = []
    for probes in (0, 8):
        policy = adaptive_with({1: 1.0, 16: 2.5})
        tree = DraftTree(
            (3, 5, *range(10, 10 + probes)), (-1, *[0] * (1 + probes)), sources=("", *["ngram"] * (1 + probes)), probes=probes
        )
        policy.budgets(LOOKUP, [sequence()], [DraftTree.root(3)])
        policy.observe([sequence()], [tree], [Verdict((), (7,), 0)], STEP)
        gains.append(policy._lookup_values._values["ngram"][0].gain_s)
    assert gains[1] < 0.0 < gains[0]


def test_predicted_tokens_are_calibrated_by_what_drafters_kept() -> None:
    """An overconfident drafter is trusted less, and the prediction follows."""
    policy = adaptive_with({1: 1.0, 8: 1.2})
    boastful = DraftTree((3, 5, 6), (-1, 0, 1), sources=("", "ngram", "ngram"), confidences=(1.0, 0.9, 0.9))
    hopeful = policy.predicted(boastful)
    assert hopeful == pytest.approx(1.0 + 0.9 + 0.81)
    for _ in range(100):
        policy.observe([sequence()], [boastful], [Verdict((), (7,), 0)], STEP)
    assert policy.predicted(boastful) < 1.0 + 0.3 * (hopeful - 1.0)


def test_the_time_of_a_trial_counts_as_drafting_time_of_its_step() -> None:
    """Nodes to verify are chosen by all drafting time of the step, including a trial's."""
    policy = adaptive_with({1: 1.0, 8: 8.0}, 0.5)
    for _ in range(2000):
        (budget,) = policy.budgets(MODEL, [sequence()], [DraftTree.root(3)])
        if budget.depth == 2:
            break
        policy.observe([sequence()], [DraftTree.root(3)], [Verdict((), (7,), 0)], STEP)
    assert budget.depth == 2
    assert policy._drafted_s == pytest.approx(policy.costs.draft_s("model", 2, 1))
