"""Speculation: counts over a sequence's steps, by drafted and accepted depth."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

from hypothesis import given, strategies as st

from fakes import ChainDrafter, FakeTokenizer, TableModel
from paceline.budget import NOTHING
from paceline.drafting import Work
from paceline.params import SamplingParams
from paceline.sequence import Sequence, Speculation
from paceline.speculative import Outcome
from serving import engine_of


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=30))
def test_a_step_counts_at_every_depth_that_it_reached(steps: list[tuple[int, int]]) -> None:
    told, drafted, accepted = Speculation(), Counter[int](), Counter[int]()
    for deepest, right in ((deepest, min(deepest, right)) for deepest, right in steps):
        told.drafted(deepest, right)
        drafted.update(range(1, deepest + 1))
        accepted.update(range(1, right + 1))
    assert told.drafted_by_depth == [drafted[depth] for depth in sorted(drafted)]
    assert told.accepted_by_depth == [accepted[depth] for depth in sorted(drafted)]
    assert told.acceptance_by_depth == [accepted[depth] / drafted[depth] for depth in sorted(drafted)]


def test_counts_by_depth_are_empty_where_nothing_was_drafted() -> None:
    assert Speculation().drafted_by_depth == Speculation().accepted_by_depth == []
    assert Speculation().acceptance_by_depth == []


def test_counts_of_several_answers_add_up_and_can_be_saved() -> None:
    one, other = Speculation(steps=2, predicted_tokens=2.5), Speculation(steps=3, predicted_tokens=1.0)
    one.drafted(2, 1)
    other.drafted(2, 2)
    other.drafted(1, 0)
    both = sum([one, other])
    assert (both.steps, both.predicted_tokens) == (5, 3.5)
    assert (both.drafted_by_depth, both.accepted_by_depth) == ([3, 2], [2, 1])
    assert (one.drafted_to, other.accepted_to) == ({2: 1}, {2: 1, 0: 1}), "the summands do not change"
    assert Speculation(**asdict(both)) == both
    assert json.loads(json.dumps(asdict(both)))["steps"] == 5


def test_a_recomputed_token_of_the_answer_is_not_counted_as_a_prompt_row() -> None:
    """A model that cannot remove a token feeds the root of a rejected draft again, which would count as reading a prompt."""
    one = Sequence(0, (1, 2, 3), SamplingParams(), 0)
    assert Work(one, 0, 2, NOTHING).rows == 2
    assert Work(one, 0, 3, NOTHING).rows == 3
    one.commit((4, 5), ())
    assert Work(one, 4, 1, NOTHING).rows == Work(one, 3, 2, NOTHING).rows == 1
    assert Work(one, 0, 5, NOTHING).rows == 5, "a preempted sequence reads all of it again"


def whole(**params: Any) -> tuple[Sequence, list[Outcome]]:
    """A request whose drafts are all right, in an engine, with its outcomes."""
    model = TableModel(6, seed=3)
    engine = engine_of(model, ChainDrafter(model, depth=6))
    one = engine.add((1, 2, 3), SamplingParams(max_tokens=40, ignore_eos=True, **params))
    outcomes = []
    while engine.has_work:
        outcomes += [progress.outcome for progress in engine.step()]
    return one, outcomes


def test_accepted_tokens_by_depth_are_those_of_all_steps_though_a_stop_string_cuts_the_last() -> None:
    text = FakeTokenizer.of_letters(6).decode(whole()[0].generated)
    count = whole(stop=(text[9],))[0].speculation
    assert count.accepted_tokens == sum(depth * steps for depth, steps in count.accepted_to.items())


def test_nothing_is_drafted_behind_the_end_of_a_text() -> None:
    one, outcomes = whole(stop_token_ids={whole()[0].generated[9]})
    trees = [outcome.tree for outcome in outcomes if outcome.tree is not None]
    assert trees
    assert all(one.stop_ids.isdisjoint(tree.tokens[1:-1]) for tree in trees)
