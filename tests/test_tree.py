"""DraftTree: all derived attributes agree with the two stored lists, for any shape."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st

from paceline.budget import Budget
from paceline.tree import DraftTree, Proposal
from paceline.union import union

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

SOURCES = ("left", "right")


@st.composite
def trees(draw: st.DrawFn, root: int = 7, source: str | None = None, kind: Proposal = Proposal.POINT) -> DraftTree:
    """Up to 12 nodes with distinct siblings out of four tokens (also equal siblings if drawn independently)."""
    tokens, parents = [root], [-1]
    for _ in range(draw(st.integers(0, 12))):
        parent, token = draw(st.integers(0, len(tokens) - 1)), draw(st.integers(0, 3))
        if kind is Proposal.IID or (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    names = ("", *(source or draw(st.sampled_from(SOURCES)) for _ in tokens[1:]))
    proposals = {(node, names[-1]): torch.full((4,), float(node)) for node in set(parents) - {-1}}
    return DraftTree(tuple(tokens), tuple(parents), kind, proposals, names)


def words(tree: DraftTree) -> list[tuple[int, ...]]:
    """The token path to every node, independent of node numbers."""
    return [tuple(tree.tokens[step] for step in tree.path(node)) for node in range(len(tree))]


@given(trees())
def test_depth_is_the_length_of_the_path(tree: DraftTree) -> None:
    assert tree.depth == tuple(len(tree.path(node)) for node in range(len(tree)))


@given(trees())
def test_a_path_descends_from_below_the_root_to_its_node(tree: DraftTree) -> None:
    for node in range(1, len(tree)):
        path = tree.path(node)
        assert path[-1] == node
        assert [tree.parents[step] for step in path] == [0, *path[:-1]]


@given(trees())
def test_a_node_sees_itself_the_root_and_its_path_only(tree: DraftTree) -> None:
    for node, row in enumerate(tree.ancestors.tolist()):
        assert {other for other, sees in enumerate(row) if sees} == {0, *tree.path(node)}


@given(trees())
def test_a_child_is_found_under_its_parent_by_its_token(tree: DraftTree) -> None:
    for node in range(1, len(tree)):
        assert tree.children[tree.parents[node]][tree.tokens[node]] == node
    assert sum(len(row) for row in tree.children) == len(tree) - 1


@given(trees())
def test_a_chain_is_a_tree_without_a_fork(tree: DraftTree) -> None:
    assert tree.is_chain == all(len(row) <= 1 for row in tree.children)


@given(trees(), st.integers(0, 13), st.integers(0, 6))
def test_pruning_keeps_the_first_nodes_that_fit_with_their_paths(tree: DraftTree, nodes: int, depth: int) -> None:
    pruned = tree.pruned(Budget(nodes, depth))
    shallow = [word for word in words(tree) if len(word) <= depth]
    assert words(pruned) == shallow[: nodes + 1]
    assert pruned.tokens[0] == tree.tokens[0]
    assert pruned.kind is tree.kind
    places = dict(zip(words(tree), range(len(tree)), strict=True))
    for node, word in enumerate(words(pruned)):
        assert pruned.sources[node] == tree.sources[places[word]]
    for (node, source), row in pruned.proposals.items():
        assert row[0] == places[words(pruned)[node]]
        assert source in tree.sources


@given(trees(kind=Proposal.IID), st.integers(0, 13))
def test_pruning_keeps_equal_independent_siblings_apart(tree: DraftTree, nodes: int) -> None:
    assert words(tree.pruned(Budget(nodes, 99))) == words(tree)[: nodes + 1]


@given(trees(), st.integers(0, 13), st.data())
def test_likeliest_keeps_the_nodes_with_the_largest_chances(tree: DraftTree, nodes: int, data: st.DataObject) -> None:
    tree = tree.rated([1.0, *[data.draw(st.floats(0.05, 1.0)) for _ in tree.tokens[1:]]])
    kept = tree.likeliest(nodes)
    assert len(kept) == min(len(tree), nodes + 1)
    best = sorted(tree.chances[1:], reverse=True)[:nodes]
    assert sum(kept.chances[1:]) == pytest.approx(sum(best))
    assert set(words(kept)) <= set(words(tree))


@given(trees(kind=Proposal.IID), st.integers(0, 13))
def test_a_drawn_tree_is_pruned_by_order_and_not_by_likelihood(tree: DraftTree, nodes: int) -> None:
    assert words(tree.likeliest(nodes)) == words(tree.first(nodes))


@given(trees(), st.frozensets(st.integers(0, 3), max_size=3))
def test_until_drops_the_nodes_below_a_stop_token(tree: DraftTree, ends: frozenset[int]) -> None:
    assert words(tree.until(ends)) == [word for word in words(tree) if ends.isdisjoint(word[:-1])]


@given(trees(), st.integers(0, 4))
def test_known_drops_tokens_beyond_the_vocabulary_with_all_below_them(tree: DraftTree, vocabulary: int) -> None:
    wanted = [node for node in range(1, len(tree)) if all(tree.tokens[at] < vocabulary for at in tree.path(node))]
    assert tree.known(vocabulary) == tree.only(wanted)


def test_probes_stay_whatever_ends_the_text() -> None:
    tree = DraftTree((9, 1, 2, 3, 1, 5), (-1, 0, 1, 1, 0, 4), probes=2)
    kept = tree.until(frozenset({1}))
    assert (kept.tokens, kept.parents, kept.probes) == ((9, 1, 1, 5), (-1, 0, 0, 2), 2)


def test_probes_go_before_candidates() -> None:
    tree = DraftTree((9, 1, 2, 3), (-1, 0, 0, 1), confidences=(1.0, 0.1, 0.9, 0.9), probes=1)
    assert tree.likeliest(2).tokens == (9, 1, 2)
    assert tree.likeliest(1).tokens == (9, 2)


@given(trees())
def test_the_first_chain_takes_the_first_child_at_every_node(tree: DraftTree) -> None:
    chain = tree.first_chain()
    word, node = [], 0
    while tree.children[node]:
        node = min(tree.children[node].values())
        word.append(tree.tokens[node])
    assert chain.is_chain
    assert chain.tokens == (tree.tokens[0], *word)
    assert len(chain.sources) == len(chain)


@given(trees(source="left"), trees(source="right"))
def test_a_merger_holds_the_first_tree_and_then_what_the_second_adds(left: DraftTree, right: DraftTree) -> None:
    both = union(left, right)
    ours, theirs = words(left), words(right)
    assert words(both)[: len(left)] == ours
    assert len(words(both)) == len({*ours, *theirs})
    assert set(words(both)) == {*ours, *theirs}
    for word, source in zip(words(both)[1:], both.sources[1:], strict=True):
        assert source == ("left" if word in ours else "right")


def test_a_union_scales_down_the_less_likely_of_two_first_tokens_that_disagree() -> None:
    """Each tree was rated on its own; the sum could exceed 1. The order of the two trees does not matter."""
    sure = DraftTree((7, 1, 2), (-1, 0, 0), sources=("", "a", "a"), confidences=(1.0, 0.7, 0.2))
    other = DraftTree((7, 3, 4, 2), (-1, 0, 1, 0), sources=("", "b", "b", "b"), confidences=(1.0, 0.5, 0.9, 0.1))
    for both in (union(sure, other), union(other, sure)):
        held = {word: both.confidences[node] for node, word in enumerate(words(both))}
        assert held[(1,)] == 0.7, "the likelier first token keeps its confidence"
        assert held[(3,)] == pytest.approx(0.5 * (1 - 0.7))
        assert held[(3, 4)] == 0.9, "only one tree says what follows it"
        assert held[(2,)] == 0.2, "a token in both trees gets the higher confidence"


def test_a_token_in_both_trees_does_not_lower_the_confidence_of_its_siblings_twice() -> None:
    knows = DraftTree((7, 1, 2), (-1, 0, 0), sources=("", "a", "a"), confidences=(1.0, 0.9, 0.08))
    for further in ((), (5,)):
        agrees = DraftTree.chain(7, (1, *further), "b").rated((1.0, 0.5, *[0.6] * len(further)))
        for both in (union(knows, agrees), union(agrees, knows)):
            held = {word: both.confidences[node] for node, word in enumerate(words(both))}
            assert (held[(1,)], held[(2,)]) == (0.9, 0.08), "it was already rated beside that token"
    surer = DraftTree.chain(7, (1,), "b").rated((1.0, 0.98))
    for both in (union(knows, surer), union(surer, knows)):
        held = {word: both.confidences[node] for node, word in enumerate(words(both))}
        assert held[(2,)] == pytest.approx(0.08 * (1 - (0.98 - 0.9))), "the other tree is surer of 1, which leaves less for 2"


@given(trees(source="left"), trees(source="right"))
def test_a_union_of_trees_of_unlike_kinds_is_a_point_tree_without_proposals(left: DraftTree, right: DraftTree) -> None:
    for kind, other in product(Proposal, Proposal):
        ours = DraftTree(left.tokens, left.parents, kind, left.proposals, left.sources)
        theirs = DraftTree(right.tokens, right.parents, other, right.proposals, right.sources)
        both = union(ours, theirs)
        if min(len(left), len(right)) == 1:
            assert both is (ours if len(right) == 1 else theirs)
        elif kind is other and (kind.drawn or kind is Proposal.COUPLED):
            assert both.kind is kind
        else:
            assert both.kind is Proposal.POINT
            assert not both.proposals


def test_draws_of_two_sources_stand_side_by_side_each_with_its_own_distribution() -> None:
    left, right = torch.zeros(4), torch.ones(4)
    one = DraftTree((7, 1, 2), (-1, 0, 1), Proposal.IID, {(0, "a"): left, (1, "a"): left}, ("", "a", "a"))
    two = DraftTree((7, 1, 3), (-1, 0, 1), Proposal.IID, {(0, "b"): right, (1, "b"): right}, ("", "b", "b"))
    both = union(one, two)
    assert words(both) == [(), (1,), (1, 2), (1,), (1, 3)]
    assert {place: row is left for place, row in both.proposals.items()} == {
        (0, "a"): True, (1, "a"): True, (0, "b"): False, (3, "b"): False,
    }  # fmt: skip


def test_mergers_of_unlike_draws_hold_every_token_once() -> None:
    twins = DraftTree((7, 1, 1), (-1, 0, 0), Proposal.IID, sources=("", "a", "a"))
    assert words(union(twins, DraftTree.chain(7, (2,), "b"))) == [(), (1,), (2,)]


def test_probes_ride_behind_all_candidates_and_are_nobodys_children() -> None:
    window = DraftTree((7, 1, 4, 5), (-1, 0, 0, 2), sources=("", "w", "w", "w"), probes=2)
    both = union(window, DraftTree.chain(7, (1, 2), "c"))
    assert both.tokens == (7, 1, 2, 4, 5)
    assert both.parents == (-1, 0, 1, 0, 3)
    assert (both.candidates, both.deepest) == (3, 2)
    assert both.children == ({1: 1}, {2: 2}, {})
    assert both.first_chain().tokens == (7, 1, 2)
    assert both.first(3).probes == 1
    with pytest.raises(ValueError, match="root"):
        DraftTree((7,), (-1,), probes=1)


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6), st.integers(0, 12))
def test_the_union_of_paths_holds_exactly_their_prefixes(paths: list[list[int]], nodes: int) -> None:
    tree = DraftTree.of_paths(7, paths, "test", nodes)
    prefixes = {tuple(path[:size]) for path in paths for size in range(len(path) + 1)} | {()}
    assert set(words(tree)) <= prefixes
    assert len(words(tree)) == len(set(words(tree)))
    assert len(tree) - 1 <= nodes
    if nodes >= len(prefixes) - 1:
        assert set(words(tree)) == prefixes


@given(st.lists(st.integers(0, 3), max_size=6))
def test_a_chain_is_the_union_of_one_path(path: list[int]) -> None:
    chain = DraftTree.chain(7, path, "test")
    assert chain.is_chain
    assert (chain.tokens, chain.parents) == (
        DraftTree.of_paths(7, [path], "test", 99).tokens,
        DraftTree.of_paths(7, [path], "test", 99).parents,
    )


def test_plain_decoding_is_the_tree_of_one_node() -> None:
    root = DraftTree.root(5)
    assert (len(root), root.depth, root.path(0), root.is_chain) == (1, (0,), (), True)


def test_every_node_has_a_source_even_where_the_drafter_gave_none() -> None:
    assert DraftTree((7, 1, 2), (-1, 0, 0)).sources == ("", "", "")


@pytest.mark.parametrize(
    ("tokens", "parents", "kind"),
    [
        ((), (), Proposal.POINT),
        ((1,), (0,), Proposal.POINT),
        ((1, 2), (-1,), Proposal.POINT),
        ((1, 2), (-1, -1), Proposal.POINT),
        ((1, 2, 3), (-1, 2, 0), Proposal.POINT),
        ((1, 2), (-1, 1), Proposal.POINT),
        ((1, 2, 2), (-1, 0, 0), Proposal.WITHOUT_REPLACEMENT),
        ((1, 2, 2), (-1, 0, 0), Proposal.COUPLED),
    ],
)
def test_what_is_no_tree_is_refused(tokens: tuple[int, ...], parents: tuple[int, ...], kind: Proposal) -> None:
    with pytest.raises(ValueError, match="draft tree"):
        DraftTree(tokens, parents, kind)


def test_independent_siblings_may_repeat_a_token() -> None:
    assert len(DraftTree((1, 2, 2), (-1, 0, 0), Proposal.IID)) == 3


def test_sources_are_one_per_node() -> None:
    with pytest.raises(ValueError, match="as many sources as nodes"):
        DraftTree((1, 2), (-1, 0), sources=("",))


def test_trees_of_different_roots_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="roots"):
        union(DraftTree.root(1), DraftTree.root(2))
