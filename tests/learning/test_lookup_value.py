"""LookupValue: in which steps lookups are asked, and with what budget."""

from __future__ import annotations

import pytest

from paceline.budget import Budget, DrafterInfo
from paceline.learning.costs import Costs
from paceline.learning.lookup_value import LookupValues
from paceline.tree import DraftTree
from stepping import sequence

FOUND = DrafterInfo("found", Budget(6, 6))


@pytest.mark.parametrize(("crowd", "nodes", "depth"), [(1, 32, 12), (8, 32, 12), (16, 16, 12), (64, 4, 4), (200, 4, 4)])
def test_in_a_crowd_a_look_up_is_asked_for_its_share(crowd: int, nodes: int, depth: int) -> None:
    """Nodes for many requests cost the host time, and of several hundred the device verifies few."""
    part = DrafterInfo("found", Budget(32, 12, floor=0.25))
    granted = LookupValues(Costs()).budgets(part, [sequence(key, range(5)) for key in range(crowd)], 0, True)
    assert granted == [Budget(nodes, depth, floor=0.25)] * crowd


def lookup_values_of(ask_s: float) -> LookupValues:
    """A lookup call takes `ask_s` seconds, a token one second, and a row next to nothing."""
    costs = Costs()
    for rows, seconds in ((1, 1.0), (8, 1.001)):
        costs.curve.put(rows, seconds)
    for depth in range(1, 7):
        costs.measured("found", depth, 1, ask_s)
    lookup_values = LookupValues(costs)
    lookup_values.token_s = lookup_values.step_s = 1.0
    return lookup_values


def first_asked(lookup_values: LookupValues, key: int, finds: bool, now: int) -> int:
    """Steps from the beginning of a request until the lookup is asked, at most 40; then the request ends."""
    one, tree = sequence(key, range(5)), DraftTree.root(4)
    for waited in range(40):
        lookup_values.forget_asked()
        if lookup_values.budgets(FOUND, [one], now + waited, True)[0].some:
            found = DraftTree.chain(4, [5], "found", confidences=[0.9]) if finds else tree
            lookup_values.update([one], [found], {}, {}, lambda: 0.0, now + waited + 1)
            lookup_values.release(key)
            return waited
    lookup_values.release(key)
    return 40


def test_a_lookup_that_fails_for_many_requests_in_a_row_is_asked_later_in_the_next() -> None:
    lookup_values = lookup_values_of(0.2)
    waited = [first_asked(lookup_values, key, False, 100 * key) for key in range(200)]
    assert waited[0] == 0
    assert sum(one == 0 for one in waited[16:]) == pytest.approx(184 / 8, abs=1), "some requests ask at once all the same"
    later = [one for one in waited if one]
    assert later == sorted(later)
    assert later[0] < 20
    assert later[-1] >= 39
    # finds are seen in requests that ask at once
    for key in range(200, 232):
        first_asked(lookup_values, key, True, 100 * key)
    assert [first_asked(lookup_values, key, True, 100 * key) for key in range(232, 240)] == [0] * 8


def test_a_lookup_that_pays_is_accounted_only_in_steps_that_are_learnt_from() -> None:
    lookup_values, one, now = lookup_values_of(0.3), sequence(1, range(5)), 0
    found, nothing = DraftTree.chain(4, [5], "found", confidences=[0.9]), DraftTree.root(4)

    def asked(tree: DraftTree, learns: bool) -> bool:
        nonlocal now
        lookup_values.forget_asked()
        some = lookup_values.budgets(FOUND, [one], now, learns)[0].some
        now += 1
        lookup_values.update([one], [tree], {}, {}, lambda: 0.0, now)
        return some

    for _ in range(20):
        assert asked(found, True)
    assert all(asked(nothing, False) for _ in range(60)), "its failure is not observed in these steps"
    assert asked(nothing, True), "an observed step counts for all steps since the last one, but the lookup keeps some credit"
    assert not all(asked(nothing, False) for _ in range(60)), "once it does not pay, every step counts"


def test_a_request_with_a_reference_stays_awake_while_its_reference_drafter_does() -> None:
    lookup_values, one = lookup_values_of(0.2), sequence(1, range(5))
    refers = DrafterInfo("refers", Budget(6, 6), refers=True)
    for depth in range(1, 7):
        lookup_values._costs.measured("refers", depth, 1, 0.2)
    assert lookup_values.awake(one, 0), "it was not asked yet"
    lookup_values.budgets(FOUND, [one], 0, True)
    lookup_values._values["found"][1].next_asked = 100
    assert lookup_values.awake(one, 0), "the first step is not over"
    lookup_values.budgets(refers, [one], 0, True)
    assert lookup_values.awake(one, 0)
    lookup_values._values["found"][1].next_asked, lookup_values._values["refers"][1].next_asked = 0, 100
    assert not lookup_values.awake(one, 0), "another lookup does not use the reference"


def test_a_reference_that_no_lookup_drafts_from_keeps_a_request_awake_for_its_first_step_only() -> None:
    lookup_values, one = lookup_values_of(0.2), sequence(1, range(5))
    lookup_values.budgets(FOUND, [one], 0, True)
    assert lookup_values.awake(one, 0)
    one.commit((1,), ("",))
    assert not lookup_values.awake(one, 0)


def test_a_request_stays_awake_while_its_reference_drafter_was_never_timed() -> None:
    """Otherwise the first prediction that a server gets is drafted from once, and then waits for a pause to end."""
    lookup_values, one = lookup_values_of(0.2), sequence(1, range(5))
    lookup_values.budgets(FOUND, [one], 0, True)
    lookup_values._values["found"][1].next_asked = 100
    lookup_values.budgets(DrafterInfo("refers", Budget(6, 6), refers=True), [one], 0, False)
    one.commit((1,), ("",))
    assert lookup_values.awake(one, 1)
