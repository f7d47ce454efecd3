"""Calibration: node probabilities follow the drafters' recent results, and none exceeds its parent's."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from paceline.learning.calibration import Calibration
from paceline.tree import DraftTree

SHARES = st.sampled_from([1.0, 0.9, 0.5, 0.01])


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1), st.booleans()), max_size=8), SHARES, SHARES)
def test_calibrated_chances_follow_one_rule_for_trees_of_one_source_and_of_two(
    nodes: list[tuple[int, float, bool]], one: float, two: float
) -> None:
    calibration, kept = Calibration(), {"one": one, "two": two}
    calibration._factors = kept
    for sources in (["one"] * len(nodes), ["two" if other else "one" for _, _, other in nodes]):
        tree = DraftTree(
            tuple(range(len(nodes) + 1)),
            (-1, *[min(parent, node) for node, (parent, _, _) in enumerate(nodes)]),
            sources=("", *sources),
            confidences=(1.0, *[held for _, held, _ in nodes]),
        )
        wanted = [1.0]
        for node in range(1, len(tree)):
            wanted.append(min(tree.chances[node] * kept[tree.sources[node]], wanted[tree.parents[node]]))
        assert list(calibration.chances(tree)) == pytest.approx(wanted, rel=1e-15)
