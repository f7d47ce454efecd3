"""Prompt lookup: the incremental index against its definition, a scan of the whole text; and what it stores, drops and costs."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from paceline.budget import Budget
from paceline.drafters.ngram import NgramDrafter, Options
from paceline.kernels.compiled_call import Call, CompiledFunction
from paceline.kernels.ngrams.index import AGREED, BEFORE, INDEX, LEADS, NgramIndex, indexed
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import DraftTree

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

SLOT_OF = CompiledFunction("ngrams.index_kernel.slot_of", text="int32[:]", table="int32[:]", length="int64", end="int64")
VOTED = CompiledFunction(
    "ngrams.continuations_kernel.collect_votes",
    text="int32[:]",
    size="int64",
    **{name: INDEX[name] for name in ("lengths", "tables", "ends")},
    seen="int64[:,:]",
    weights="float64[:]",
    matches="int64[:]",
    places="int64[:]",
)
LOOKED_AT = 6
LONGEST = 12

OPTIONS = st.builds(
    lambda shortest, more, matches, depth, nodes: Options(
        min=shortest, max=shortest + more, matches=matches, depth=depth, nodes=nodes
    ),
    st.integers(1, 3),
    st.one_of(st.integers(0, 4), st.integers(10, 16)),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 9),
)
BUDGETS = st.builds(Budget, st.integers(0, 12), st.integers(0, 6))
# few different tokens and long texts: most n-grams occur several times
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def matched(tokens: list[int], end: int, most: int) -> int:
    """How many tokens before `end` equal the last tokens of the text, at most `most`."""
    length = 0
    while length < min(most, end) and tokens[end - length - 1] == tokens[len(tokens) - length - 1]:
        length += 1
    return length


def places(tokens: list[int], options: Options) -> list[tuple[int, int]]:
    """The definition: (length, end) of the longest matches, the latest first. Of each indexed length only the latest places
    count; after them comes the majority of all places of the last length looked up."""
    found: dict[int, int] = {}
    most: list[tuple[int, int]] = []
    for n in reversed(indexed(options.min, options.max)):
        ends = [end for end in range(len(tokens) - 1, 0, -1) if matched(tokens, end, max(n, LONGEST)) >= n]
        found |= {end: matched(tokens, end, LONGEST) for end in ends[:LOOKED_AT]}
        if len(ends) >= LOOKED_AT:
            place, lead = majority(tokens, ends)
            most = [(min(n, LONGEST), place)] if lead else []
            break
    return [*sorted(((length, end) for end, length in found.items()), reverse=True)[:LOOKED_AT], *most]


def majority(tokens: list[int], ends: list[int]) -> tuple[int, int]:
    """The Boyer-Moore majority of the tokens behind these places, the oldest first: its latest place, and its lead."""
    place = lead = 0
    for end in reversed(ends):
        if not lead or tokens[end] == tokens[place]:
            place, lead = end, lead + 1
        else:
            lead -= 1
    return place, lead


def votes(text: NgramIndex) -> list[tuple[int, int]]:
    """(length, end) of the places that the index lets vote."""
    weights, matches, ends = np.zeros(LOOKED_AT + 1), *np.zeros((2, LOOKED_AT + 1), np.int64)
    seen = np.empty((len(text.lengths) * LOOKED_AT, 2), np.int64)
    count = VOTED(text.text, text.size, text.lengths, text.tables, text.ends, seen, weights, matches, ends)
    assert (weights[:count] > 0.0).all()
    return list(zip(matches[:count].tolist(), ends[:count].tolist(), strict=True))


def last(text: NgramIndex) -> list[set[int]]:
    """Per length, the last ends of all n-grams."""
    return [{int(end) for end in table if end} for table in text.tables]


def held(text: NgramIndex) -> list[object]:
    """Everything stored about tokens that have a successor."""
    known = max(text.size - 1, 0)
    return [text.text[:known].tolist(), last(text), text.ends[:, :, : known + 1].tolist()]


def sequence(key: int, tokens: list[int]) -> Sequence:
    return Sequence(key, tuple(tokens), SamplingParams(), seed=0)


def proposed(drafter: NgramDrafter, owner: Sequence, budget: Budget) -> DraftTree:
    return drafter.propose([owner], [budget])[0]


def drafted(tokens: list[int], budget: Budget = Budget(64, 64), **options: int) -> DraftTree:
    drafter = NgramDrafter(Options(**options))
    return proposed(drafter, sequence(0, tokens), budget)


def paths(tree: DraftTree) -> list[list[int]]:
    """The tokens of every branch, in the order of their leaves."""
    leaves = [node for node in range(len(tree)) if not tree.children[node]]
    return [[tree.tokens[node] for node in tree.path(leaf)] for leaf in leaves]


@given(OPTIONS, TEXTS, st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), BUDGETS), max_size=8))
def test_a_grown_index_votes_as_a_scan_of_the_text_would(options: Options, prompt: list[int], steps) -> None:
    drafter, owner = NgramDrafter(options), sequence(0, prompt)
    for tokens, budget in [([], drafter.budget), *steps]:
        owner.commit(tuple(tokens), ("",) * len(tokens))
        tree = proposed(drafter, owner, budget)
        assert votes(drafter._states[0]) == places(owner.tokens, options)
        check(tree, owner.tokens, options, budget)


def check(tree: DraftTree, tokens: list[int], options: Options, budget: Budget) -> None:
    """Within its bounds, and every branch is a continuation of an earlier occurrence of the text's end."""
    found, size = places(tokens, options), len(tokens)
    bound = budget.within(Budget(options.nodes, options.depth))
    assert len(tree) - 1 <= bound.nodes
    assert tree.deepest <= bound.depth
    assert tree.pruned(budget) is tree
    said = [[tokens[end + depth % (size - end)] for depth in range(tree.deepest)] for _, end in found]
    branches = paths(tree)
    assert len(branches) <= options.matches
    assert all(path in [one[: len(path)] for one in said] for path in branches if path)
    assert all(0.0 < confidence <= 1.0 for confidence in tree.confidences)
    if found and min(bound.nodes, bound.depth):
        assert len(tree) > 1, "with few different tokens a continuation is likely"


@given(OPTIONS, TEXTS)
def test_a_tighter_budget_keeps_the_likeliest_nodes(options: Options, text: list[int]) -> None:
    whole = drafted(text, **options.model_dump())
    for nodes in range(options.nodes + 1):
        assert drafted(text, Budget(nodes, 64), **options.model_dump()) == whole.first(nodes)


@given(OPTIONS, TEXTS, st.integers(0, 60), TEXTS)
def test_a_fork_cut_back_goes_on_as_if_it_had_never_seen_more(
    options: Options, text: list[int], kept: int, other: list[int]
) -> None:
    drafter, owner = NgramDrafter(options), sequence(0, text)
    proposed(drafter, owner, drafter.budget)
    before = proposed(drafter, owner, drafter.budget)
    drafter.fork(0, 1, len(text))
    drafter.truncate(1, kept)
    fresh = NgramDrafter(options)
    proposed(fresh, sequence(1, text[: max(kept, 1)]), fresh.budget)
    assert held(drafter._states[1]) == held(fresh._states[1])
    branch = sequence(1, [*text[:kept], *other])
    assert proposed(drafter, branch, drafter.budget) == drafted(branch.tokens, drafter.budget, **options.model_dump())
    assert proposed(drafter, owner, drafter.budget) == before, "the original sequence is unaffected"


def test_a_short_beginning_takes_no_room_for_the_long_text_it_comes_from() -> None:
    long = [token % 97 for token in range(20_000)]
    drafter, fresh, owner = NgramDrafter(Options()), NgramDrafter(Options()), sequence(0, long)
    proposed(drafter, owner, drafter.budget)
    branch = sequence(1, [*long[:100], *long[:50]])
    drafter.fork(0, 1, 100)
    assert proposed(drafter, branch, drafter.budget) == proposed(fresh, branch, fresh.budget)
    assert drafter._states[1].held_bytes == fresh._states[1].held_bytes
    drafter.fork(0, 2, 19_000)
    assert drafter._states[2].text is not drafter._states[0].text
    assert len(drafter._states[2].text) == 20_000


def test_a_released_sequence_holds_no_bytes_and_is_rebuilt_from_its_tokens() -> None:
    drafter, owner = NgramDrafter(Options()), sequence(0, [1, 2, 3, 4, 1, 2, 3])
    before = proposed(drafter, owner, drafter.budget)
    assert len(before) > 1
    assert drafter.sequence_bytes > 0
    drafter.release(0)
    assert drafter.sequence_bytes == 0
    assert proposed(drafter, owner, drafter.budget) == before


def test_the_longest_match_goes_first() -> None:
    # 2 3 was followed by 4 once; 3 alone by 5, twice and later
    tree = drafted([1, 2, 3, 4, 8, 3, 5, 9, 3, 5, 7, 2, 3], depth=1)
    assert tree.tokens[1] == 4
    assert 5 in tree.children[0], "and continuations of shorter matches follow"


def test_of_matches_of_one_length_what_they_say_most_often_goes_first_then_what_they_said_last() -> None:
    assert drafted([3, 5, 8, 3, 5, 9, 3, 4, 7, 3], depth=1).tokens[1] == 5
    assert drafted([3, 5, 8, 3, 4, 9, 3], depth=1).tokens[1] == 4


def test_a_long_match_is_found_behind_any_number_of_later_short_ones() -> None:
    repeated, right = list(range(1, 12)), [21, 22, 23, 24]
    later = [token for other in range(9) for token in (31 + other, 9, 10, 11, 41 + other)]
    tree = drafted([*repeated, *right, *later, 50, *repeated])
    assert paths(tree)[0][:4] == right
    assert tree.tokens[1] == 21


def test_what_followed_most_often_goes_before_what_followed_last() -> None:
    """One token follows at sixty places, another one at each of the six latest."""
    often = [token for filler in range(60) for token in (100 + filler, 1, 2, 3, 5)]
    late = [token for other in range(6) for token in (200 + other, 1, 2, 3, 6 + other)]
    tree = drafted([*often, *late, 300, 1, 2, 3])
    assert tree.tokens[1] == 5
    assert all(tree.confidences[1] > tree.confidences[node] for token, node in tree.children[0].items() if token != 5)


def test_a_majority_is_found_in_any_order() -> None:
    draw = Random(0)
    for _ in range(50):
        said = [5] * 30 + [draw.randrange(6, 12) for _ in range(29)]
        draw.shuffle(said)
        text = NgramIndex(1, 3)
        tokens = [token for other, follower in enumerate(said) for token in (100 + other, 1, 2, 3, follower)] + [1, 2, 3]
        text.grow(tokens)
        for row, n in enumerate(text.lengths):
            end = latest = text.tables[row, SLOT_OF(text.text, text.tables[row], n, text.size)]
            place, lead = text.ends[row, [AGREED, LEADS], latest]
            said_five = []
            while end:
                said_five += [end] if tokens[end] == 5 else []
                end = text.ends[row, BEFORE, end]
            assert place == said_five[0]
            assert 1 <= lead <= 30


def test_indexed_ngram_lengths_are_spaced_out_for_long_matches() -> None:
    assert indexed(1, 6) == (1, 2, 3, 6)
    assert indexed(2, 32) == (2, 3, 6, 12, 24, 32)
    assert indexed(5, 5) == (5,)


def test_a_match_longer_than_the_longest_indexed_ngram_is_drafted_from() -> None:
    text = list(range(30))
    assert drafted([*text, *text[:25]], max=20).tokens[1:6] == (25, 26, 27, 28, 29)


def test_several_continuations_make_a_tree_of_up_to_so_many() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
    assert list(drafted(text, matches=3).children[0]) == [5, 4, 3]
    assert list(drafted(text, matches=2).children[0]) == [5, 4]
    assert len(paths(drafted(text, matches=2))) == 2
    assert drafted(text, matches=1).is_chain


def test_a_match_near_the_end_is_read_on_as_if_the_text_repeated_itself() -> None:
    assert drafted([9, 1, 2, 3, 1, 2, 3], max=3, depth=8).tokens[1:] == (1, 2, 3, 1, 2, 3, 1, 2)
    assert drafted([7, 7], depth=3).tokens[1:] == (7, 7, 7)


def test_a_longer_match_drafts_further_and_is_held_likelier() -> None:
    text = list(range(100, 130))
    trees = [drafted([*text, 1, *text[10 - length : 10]], nodes=64, depth=64) for length in (1, 2, 4, 8)]
    sizes = [len(tree) for tree in trees]
    assert sizes == sorted(sizes)
    assert 1 < sizes[0] < sizes[-1]
    first = [tree.confidences[1] for tree in trees]
    assert first == sorted(set(first))
    assert all(list(tree.confidences[1:]) == sorted(tree.confidences[1:]) for tree in trees), "a match grows as it continues"


def test_nothing_is_drafted_behind_a_token_below_the_floor() -> None:
    text = [*range(100, 130), 1, 105]
    assert len(drafted(text)) > 2
    assert len(drafted(text, Budget(64, 64, floor=0.5))) == 2


def test_a_text_that_says_one_thing_over_and_over_holds_its_ngrams_once() -> None:
    """Its ends still take a few bytes each; lists of them per n-gram could not be cut back."""
    short, long = NgramDrafter(Options()), NgramDrafter(Options())
    proposed(short, sequence(0, [1, 2] * 50), short.budget)
    proposed(long, sequence(0, [1, 2] * 5000), long.budget)
    assert sum(map(len, last(long._states[0]))) == sum(map(len, last(short._states[0]))) == 8
    assert long._states[0].tables.nbytes < 100_000
    # at most twice the size of a token: itself, and three numbers for each of four lengths
    assert long.sequence_bytes <= short.sequence_bytes + 100_000 + 2 * 9_900 * 4 * (1 + 3 * 4)


def test_every_token_of_a_large_vocabulary_is_found_and_cut_back() -> None:
    """Tables grow with the number of n-grams, and n-grams with the same slot are kept apart."""
    draw = Random(1)
    tokens = [draw.randrange(2**31 - 2) for _ in range(5000)]
    drafter = NgramDrafter(Options(min=1, max=1, matches=1, depth=1))
    for start in range(0, 5000, 617):
        owner = sequence(start, [*tokens, tokens[start]])
        assert proposed(drafter, owner, drafter.budget).tokens[1:] == (tokens[start + 1],)
        drafter.truncate(start, 2500)
        text = drafter._states[start]
        assert last(text) == [set(range(1, 2500))]
        assert all(text.tables[0, SLOT_OF(text.text, text.tables[0], 1, end)] == end for end in range(1, 2500))


def test_a_proposal_reads_as_little_of_a_long_text_as_of_a_short_one() -> None:
    """Counts reads instead of measuring time: only new tokens of a text are read, and the token before them."""

    class Counting(list[int]):
        read = 0

        def __getitem__(self, place):
            found = super().__getitem__(place)
            self.read += len(found) if isinstance(place, slice) else 1
            return found

    def reads(size: int) -> int:
        drafter, owner = NgramDrafter(Options()), sequence(0, [token % 40 for token in range(size)])
        proposed(drafter, owner, drafter.budget)
        owner.tokens = counting = Counting(owner.tokens)
        owner.commit((size % 40,), ("",))
        proposed(drafter, owner, drafter.budget)
        return counting.read

    assert reads(16_000) == reads(2_000) == 2


@pytest.mark.parametrize("cut", [None, 20])
def test_a_sequence_interrupted_while_its_tokens_are_indexed_is_rebuilt(monkeypatch: pytest.MonkeyPatch, cut: int | None) -> None:
    """A signal during compiled code is raised when it returns, after the tables have grown."""
    call, draw = Call.__call__, Random(0)

    def interrupt(self: Call) -> int:
        call(self)
        raise KeyboardInterrupt

    for key in range(40):
        tokens = tuple(draw.choices(range(4), k=30))
        drafter, fresh = NgramDrafter(Options()), NgramDrafter(Options())
        sequence = Sequence(key, tokens, SamplingParams(), 0)
        drafter.propose([sequence], [drafter.budget])
        sequence.commit(tuple(draw.choices(range(4), k=6)), ())
        with monkeypatch.context() as patched:
            patched.setattr(Call, "__call__", interrupt)
            with pytest.raises(KeyboardInterrupt):
                drafter.propose([sequence], [drafter.budget])
        if cut is not None:
            drafter.truncate(key, cut)
        assert drafter.propose([sequence], [drafter.budget]) == fresh.propose([sequence], [drafter.budget])
