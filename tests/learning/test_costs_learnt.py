"""Learnt costs of steps: a curve by rows, and draft times that follow the machine's speed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from fakes import ChainDrafter, TableModel, coupled
from paceline.budget import Budget
from paceline.engine.scheduler import Limits
from paceline.learning.costs import Costs
from paceline.learning.depth_acceptance import DraftContext
from paceline.learning.forward_curve import ForwardCurve
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import DraftTree
from serving import engine_of


def curve(points: dict[int, float]) -> ForwardCurve:
    made = ForwardCurve()
    for rows, seconds in points.items():
        made.put(rows, seconds)
    return made


def test_a_curve_is_linear_between_its_points_and_in_proportion_behind_them() -> None:
    made = curve({1: 1.0, 4: 1.3, 8: 2.5})
    assert [made(rows) for rows in (1, 2, 4, 6, 8, 16)] == pytest.approx([1.0, 1.1, 1.3, 1.9, 2.5, 5.0])


def test_a_single_point_leaves_a_cautious_guess() -> None:
    assert ForwardCurve()(5) == 0.0
    made = curve({1: 1.0})
    assert 1.0 < made(4) < made(8) < 2.0


@given(st.lists(st.tuples(st.integers(1, 80), st.floats(0.1, 9.0)), min_size=1, max_size=12), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=200, database=None)
def test_cached_values_of_a_cost_curve_follow_from_its_points(points: list[tuple[int, float]], steps: bool) -> None:
    made = ForwardCurve()
    for at, (rows, seconds) in enumerate(points):
        if steps and at > 2:
            made.see(rows, seconds)
        else:
            made.put(rows, seconds)
        # fills caches, which must not outlive a change of the points
        assert made(200) > 0.0
        assert made(7) > 0.0
    for rows in range(250):
        assert made(rows) == pytest.approx(made._shape(rows) * made.pace)
        assert made.span(rows, 7) == [made(rows + more) for more in range(8)]


def test_a_curve_follows_a_machine_that_slows_down_without_losing_its_shape() -> None:
    made = curve({1: 1.0, 4: 1.2, 8: 2.0})
    for _ in range(100):
        made.see(4, 2.4)
    assert made(4) == pytest.approx(2.4, rel=0.02)
    assert made(1) / made(8) == pytest.approx(0.5, rel=0.01)


def test_one_point_that_was_measured_wrong_is_corrected() -> None:
    made = curve({1: 1.0, 4: 5.0, 8: 2.0})
    for _ in range(400):
        made.see(1, 1.0)
        made.see(4, 1.2)
    assert made(4) / made(1) == pytest.approx(1.2, rel=0.15)


def test_a_disturbed_step_moves_little() -> None:
    made = curve({1: 1.0})
    made.see(1, 1000.0)
    assert made(1) < 1.5


def test_draft_costs_are_interpolated_by_depth_and_scale_with_the_batch() -> None:
    costs = Costs()
    assert costs.draft_s("model", 4, 1) == 0.0
    costs.measured("model", 1, 1, 1.0)
    costs.measured("model", 5, 1, 3.0)
    assert costs.draft_s("model", 3, 1) == pytest.approx(2.0)
    assert costs.draft_s("model", 5, 4) == pytest.approx(12.0)
    assert costs.draft_s("ngram", 5, 1) == 0.0


def test_drafts_for_some_sequences_cost_between_those_for_fewer_and_those_for_more() -> None:
    costs = Costs()
    for depth, batch, seconds in [(1, 1, 0.18), (5, 1, 0.5), (1, 4, 0.27), (5, 4, 0.75)]:
        costs.measured("model", depth, batch, seconds)
    assert [costs.draft_s("model", depth, 2) for depth in (1, 3, 5)] == pytest.approx([0.21, 0.34 + 0.17 / 3, 0.5 + 0.25 / 3])
    assert costs.draft_s("model", 1, 3) == costs.draft_s("model", 1, 4) == pytest.approx(0.27)
    assert costs.draft_s("model", 1, 16) == pytest.approx(4 * 0.27), "proportional beyond the largest known batch"
    read(costs, {1: 100, 2: 100})
    costs.drafted("model", 5, {1: 101, 2: 102}, 0.58)
    assert 0.18 <= costs.draft_s("model", 1, 2) <= 0.27, "a timing of one depth does not change other depths"
    costs.measured("many", 1, 16, 1.0)
    assert costs.draft_s("many", 1, 2) == 1.0


def read(costs: Costs, lengths: dict[int, int]) -> None:
    """A first draft for these requests, which reads their prompts."""
    costs.drafted("model", 1, lengths, 1e9)


def test_one_disturbed_draft_hardly_raises_the_draft_cost() -> None:
    costs = Costs()
    read(costs, {1: 100})
    costs.drafted("model", 4, {1: 101}, 1.0)
    costs.drafted("model", 4, {1: 102}, 500.0)
    assert costs.draft_s("model", 4, 1) < 1.1
    assert costs.draft_s("model", 2, 1) < 0.55


def test_reading_texts_time_and_again_does_not_make_drafts_dear() -> None:
    """As in repeated trials of a drafter: each draft reads everything written since the last one."""
    costs = Costs()
    costs.measured("model", 2, 1, 1.0)
    costs.measured("model", 2, 4, 2.0)
    for turn in range(100):
        costs.drafted("model", 2, {turn: 200}, 8.0)
        costs.drafted("model", 2, {turn: 264}, 3.0)
        costs.drafted("model", 2, {turn: 270, 1000 + turn: 10, 2000 + turn: 200}, 30.0)
    assert costs.draft_s("model", 2, 1) == 1.0
    assert costs.draft_s("model", 2, 4) == 2.0


def test_a_machine_that_changes_its_speed_changes_that_of_all_depths() -> None:
    """Otherwise a depth measured while the machine was slower would never be tried again."""
    costs = Costs()
    for depth in (1, 5):
        costs.measured("model", depth, 1, depth * 2.0)
    read(costs, {1: 100})
    for _ in range(40):
        costs.drafted("model", 1, {1: 100}, 1.0)
    assert costs.draft_s("model", 1, 1) == pytest.approx(1.0, rel=0.05)
    assert costs.draft_s("model", 5, 1) == pytest.approx(5.0, rel=0.3)
    for _ in range(40):
        costs.drafted("model", 5, {1: 100}, 10.0)
    assert costs.draft_s("model", 5, 1) == pytest.approx(10.0, rel=0.05)
    assert costs.draft_s("model", 1, 1) == pytest.approx(2.0, rel=0.5)


def test_steps_that_decode_teach_the_curve_and_show_their_trees() -> None:
    model = TableModel(6, seed=3)
    engine = engine_of(model, ChainDrafter(model), Limits(batch=2, chunk=4))
    engine.add([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], SamplingParams(max_tokens=12, ignore_eos=True))
    trees, curves = [], []
    for _ in range(4):
        (progress,) = engine.step()
        trees.append(progress.outcome.tree)
        curves.append(dict(engine.speculative.costs.curve.points))
    # prompt chunks of 4, 4 and 2 tokens, the last of which includes the root; then a step that feeds only its tree
    assert [tree is not None for tree in trees] == [False, False, True, True]
    assert [len(points) for points in curves] == [0, 0, 0, 1]
    assert all(len(tree) > 1 for tree in trees[2:])


def test_levels_beyond_a_requests_node_limit_do_not_count_as_failed() -> None:
    model = TableModel(6, seed=3)
    engine = engine_of(model, coupled(model, depth=6, disturbed=0.0))
    text = engine.add([1, 2, 3, 4, 5], SamplingParams(max_tokens=60, ignore_eos=True), nodes=2)
    while text.finish_reason is None:
        engine.step()
    assert text.speculation.tau > 2.5
    assert min(engine.speculative.depth_acceptance.brought("model", 6, DraftContext.ALONE)) > 0.9


def test_drafts_of_named_drafters_do_not_teach_depth_acceptance() -> None:
    model = TableModel(6, seed=3)
    engine = engine_of(model, coupled(model, depth=6, disturbed=0.0))
    text = engine.add([1, 2, 3, 4, 5], SamplingParams(max_tokens=60, ignore_eos=True), drafters=frozenset({"model"}))
    while text.finish_reason is None:
        engine.step()
    assert text.speculation.tau > 2.5
    assert set(engine.speculative.depth_acceptance.brought("model", 6, DraftContext.ALONE)) == {0.6}


class Clock:
    """A clock that tests advance; every reading adds a little."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s


class ReadingDrafter(ChainDrafter):
    """A lookup that takes one second per request, and a hundred more to read the text of a new one."""

    def __init__(self, model: TableModel, clock: Clock) -> None:
        super().__init__(model)
        self.clock, self.known = clock, set[int]()

    def _tree(self, sequence: Sequence, budget: Budget, stream: Random) -> DraftTree:
        self.clock.now_s += 1.0 if sequence.key in self.known else 101.0
        self.known.add(sequence.key)
        return super()._tree(sequence, budget, stream)


@pytest.mark.parametrize("requests", [1, 16])
def test_a_look_up_costs_what_it_takes_for_one_request_that_it_knows(requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, clock = TableModel(6), Clock()
    for module in ("speculative", "drafting"):
        monkeypatch.setattr(f"paceline.{module}.now", clock)
    engine = engine_of(model, ReadingDrafter(model, clock), Limits(batch=17))
    costs, params = engine.speculative.costs, SamplingParams(max_tokens=60, ignore_eos=True)
    for _ in range(requests):
        engine.add([1, 2, 3, 4, 5], params)
    engine.step()
    assert costs.drafts == {}
    engine.step()
    learnt_s = costs.draft_s("scripted", 4, 1)
    assert learnt_s == pytest.approx(1.0, rel=1e-3)
    engine.add([1, 2, 3, 4, 5], params)
    engine.step()
    assert costs.draft_s("scripted", 4, 1) == learnt_s, "a request that joins later does not raise the cost"
    while engine.has_work:
        engine.step()
    assert costs.draft_s("scripted", 4, 1) == pytest.approx(1.0, rel=1e-3), "the last tokens of an answer do not lower the cost"


def test_a_draft_for_a_request_that_is_new_among_known_ones_teaches_nothing_about_its_levels() -> None:
    """It reads a prompt too."""
    costs = Costs()
    costs.measured("m", 4, 2, 1.0)
    costs.drafted("m", 4, {1: 100, 2: 100}, 1.0)
    before = costs.draft_s("m", 4, 2)
    costs.drafted("m", 4, {3: 5000, 2: 101}, 50.0)
    assert costs.draft_s("m", 4, 2) == before
