"""Step: the flat layout of a batch. Rows, slots, positions and wanted rows follow from the feeds alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from paceline.cache.base import kept_slots
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")


def sequence(key: int, size: int) -> Sequence:
    return Sequence(key, tuple(range(100 * key, 100 * key + size)), SamplingParams(), seed=0)


@st.composite
def feeds(draw: st.DrawFn) -> list[Feed]:
    """One to four sequences: plain decodes, prefill chunks, trees behind long and short chains."""
    made = []
    for key in range(draw(st.integers(1, 4))):
        owner = sequence(key, draw(st.integers(1, 9)))
        start = draw(st.integers(0, len(owner.tokens) - 1))
        end = draw(st.integers(start + 1, len(owner.tokens)))
        parents = [-1]
        for node in range(draw(st.integers(0, 5))):
            parents.append(draw(st.integers(0, node)))
        tree = DraftTree((owner.tokens[-1], *range(50, 49 + len(parents))), tuple(parents))
        made.append(Feed(owner, start, tuple(owner.tokens[start:end]), tree if end == len(owner.tokens) else None))
    return made


@given(feeds())
def test_segments_tile_the_flat_row_in_order(made: list[Feed]) -> None:
    step = Step.of(made)
    low = 0
    for feed, segment in zip(made, step.segments, strict=True):
        drafted = feed.tree.tokens[1:] if feed.tree else ()
        assert segment.low == low
        assert tuple(step.token_ids[low : segment.high].tolist()) == (*feed.tokens, *drafted)
        assert segment.end == feed.start + segment.rows
        low = segment.high
    assert low == len(step.token_ids) == len(step.positions)


@given(feeds())
def test_the_tensors_hold_what_the_integers_say(made: list[Feed]) -> None:
    step = Step.of(made)
    assert tuple(step.token_ids.tolist()) == step.tokens
    assert tuple(step.positions.tolist()) == step.row_positions
    assert tuple(step.wants.tolist()) == step.wanted_rows
    for segment in step.segments:
        assert tuple(segment.positions.tolist()) == segment.row_positions == step.row_positions[segment.low : segment.high]


@given(feeds())
def test_the_ancestors_of_a_row_are_those_of_its_parent_and_itself(made: list[Feed]) -> None:
    for segment in Step.of(made).segments:
        seen = segment.ancestors.tolist()
        for row, parent in enumerate(segment.row_parents):
            before = seen[parent] if parent >= 0 else [False] * segment.rows
            assert seen[row] == [one or other == row for other, one in enumerate(before)]


@given(feeds())
def test_a_row_stands_where_its_token_would_stand_in_the_text(made: list[Feed]) -> None:
    step = Step.of(made)
    for feed, segment in zip(made, step.segments, strict=True):
        positions = step.positions[segment.low : segment.high].tolist()
        chain = list(range(feed.start, feed.start + len(feed.tokens)))
        depths = feed.tree.depth[1:] if feed.tree else ()
        assert positions == chain + [chain[-1] + depth for depth in depths]


@given(feeds())
def test_logits_are_wanted_of_the_root_and_its_nodes_and_of_nothing_else(made: list[Feed]) -> None:
    step = Step.of(made)
    pieces = step.wants.split([segment.nodes for segment in step.segments])
    for feed, segment, piece in zip(made, step.segments, pieces, strict=True):
        rows = piece.tolist()
        assert segment.nodes == (len(feed.tree) if feed.tree else 0)
        assert step.token_ids[rows].tolist() == list(feed.tree.tokens if feed.tree else ())
    assert len(step.wants) == sum(segment.nodes for segment in step.segments)


@given(feeds())
def test_a_row_sees_the_chain_before_it_and_its_own_path(made: list[Feed]) -> None:
    for segment in Step.of(made).segments:
        seen = segment.ancestors.tolist()
        for row in range(segment.chain):
            assert [other for other in range(segment.rows) if seen[row][other]] == list(range(row + 1))
        for node in range(1, segment.nodes):
            assert segment.tree is not None
            path = [segment.chain - 1 + step for step in segment.tree.path(node)]
            row = segment.chain - 1 + node
            assert [other for other in range(segment.rows) if seen[row][other]] == [*range(segment.chain), *path]


@given(feeds())
def test_a_node_is_staged_in_the_slot_of_its_row(made: list[Feed]) -> None:
    for segment in Step.of(made).segments:
        for node in range(segment.nodes):
            assert segment.slot(node) == segment.start + segment.chain - 1 + node
        assert segment.is_chain == (segment.tree is None or segment.tree.is_chain)


@given(feeds(), st.randoms(use_true_random=False))
def test_a_commit_keeps_the_chain_and_the_slots_of_the_path(made: list[Feed], chance) -> None:
    step = Step.of(made)
    paths = [feed.tree.path(chance.randrange(len(feed.tree))) if feed.tree else () for feed in made]
    kept = kept_slots(step, [Verdict(path, (0,) * (len(path) + 1), len(path)) for path in paths])
    for feed, segment, path, (length, slots) in zip(made, step.segments, paths, kept, strict=True):
        assert length == feed.start + len(feed.tokens)
        assert slots == [segment.slot(node) for node in path]
        assert all(length + place <= slot for place, slot in enumerate(slots))


def test_a_segment_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Step.of([Feed(sequence(0, 3), 3, ())])


def test_a_tree_hangs_below_the_last_token_fed() -> None:
    with pytest.raises(ValueError, match="root"):
        Step.of([Feed(sequence(0, 3), 0, (0, 1, 2), DraftTree.root(9))])


def test_a_cut_verdict_keeps_its_accepted_path_above_the_last_token() -> None:
    verdict = Verdict((2, 5, 6), (11, 12, 13, 14), 3)
    assert verdict.kept == (2, 5, 6)
    for count, path, kept in ((1, (2,), ()), (2, (2, 5), (2,)), (3, (2, 5, 6), (2, 5)), (4, (2, 5, 6), (2, 5, 6))):
        cut = verdict.cut(count, "stop")
        assert cut == Verdict(path, (11, 12, 13, 14)[:count], 3, "stop")
        assert cut.kept == kept
