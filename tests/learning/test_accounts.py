"""What look-ups are asked for."""

from __future__ import annotations

import pytest

from paceline.budget import Budget, Part
from paceline.learning.accounts import Accounts
from paceline.learning.costs import Costs
from stepping import sequence


@pytest.mark.parametrize(("crowd", "nodes", "depth"), [(1, 32, 12), (8, 32, 12), (16, 16, 12), (64, 4, 4), (200, 4, 4)])
def test_in_a_crowd_a_look_up_is_asked_for_its_share(crowd: int, nodes: int, depth: int) -> None:
    """A node that a crowd finds costs the host its time, and of several hundred a device looks at few."""
    part = Part("found", Budget(32, 12, floor=0.25))
    granted = Accounts(Costs()).budgets(part, [sequence(key, range(5)) for key in range(crowd)], 0)
    assert granted == [Budget(nodes, depth, floor=0.25)] * crowd
