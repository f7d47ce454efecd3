"""Prompt lookup: the grown index against its definition, a scan of the whole text; and what it holds, forgets and costs."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from paceline.drafters.ngram import NgramDrafter, Options
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import Budget, DraftTree

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

LOOKED_AT = 16

OPTIONS = st.builds(
    lambda shortest, more, matches, depth: Options(min=shortest, max=shortest + more, matches=matches, depth=depth),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(1, 5),
)
BUDGETS = st.builds(Budget, st.integers(0, 12), st.integers(0, 6))
# few letters and long texts: most n-grams stand there several times
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def scanned(tokens: list[int], options: Options, budget: Budget) -> DraftTree:
    """The definition: the longest match that says anything, its latest places first, whole continuations before cut ones."""
    depth = min(budget.depth, options.depth)
    for n in range(options.max, options.min - 1, -1):
        ends = [end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:]]
        paths: list[list[int]] = []
        for end in ends[: -LOOKED_AT - 1 : -1]:
            path = tokens[end : end + depth]
            if path and path not in paths:
                paths.append(path)
        if paths:
            paths.sort(key=len, reverse=True)
            return DraftTree.of_paths(tokens[-1], paths[: options.matches], "ngram", budget.nodes)
    return DraftTree.root(tokens[-1])


def sequence(key: int, tokens: list[int]) -> Sequence:
    return Sequence(key, tuple(tokens), SamplingParams(), seed=0)


def proposed(drafter: NgramDrafter, owner: Sequence, budget: Budget) -> DraftTree:
    return drafter.propose([owner], [budget])[0]


@given(OPTIONS, TEXTS, st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), BUDGETS), max_size=8))
def test_a_grown_index_proposes_what_a_scan_of_the_text_would(options: Options, prompt: list[int], steps) -> None:
    drafter, owner = NgramDrafter(options), sequence(0, prompt)
    for tokens, budget in [([], drafter.budget), *steps]:
        owner.commit(tuple(tokens), ("",) * len(tokens))
        assert proposed(drafter, owner, budget) == scanned(owner.tokens, options, budget)


@given(OPTIONS, TEXTS, st.integers(0, 60), TEXTS)
def test_a_fork_cut_back_goes_on_as_if_it_had_never_seen_more(
    options: Options, text: list[int], kept: int, other: list[int]
) -> None:
    drafter, owner = NgramDrafter(options), sequence(0, text)
    proposed(drafter, owner, drafter.budget)
    before = proposed(drafter, owner, drafter.budget)
    drafter.fork(0, 1)
    drafter.truncate(1, kept)
    fresh = NgramDrafter(options)
    proposed(fresh, sequence(1, text[: max(kept, 1)]), fresh.budget)
    assert drafter._indices[1].last == fresh._indices[1].last
    branch = sequence(1, [*text[:kept], *other])
    assert proposed(drafter, branch, drafter.budget) == scanned(branch.tokens, options, drafter.budget)
    assert proposed(drafter, owner, drafter.budget) == before, "the sequence it came from is left alone"


def test_what_is_released_is_held_no_longer_and_can_be_rebuilt() -> None:
    drafter, owner = NgramDrafter(Options()), sequence(0, [1, 2, 3, 4, 1, 2, 3])
    before = proposed(drafter, owner, drafter.budget)
    assert len(before) > 1
    assert drafter.held_bytes > 0
    drafter.release(0)
    assert drafter.held_bytes == 0
    assert proposed(drafter, owner, drafter.budget) == before


def test_a_text_that_says_one_thing_over_and_over_holds_its_ngrams_once() -> None:
    """Its ends still take a few bytes each; a list of them per n-gram could not be cut back."""
    short, long = NgramDrafter(Options()), NgramDrafter(Options())
    proposed(short, sequence(0, [1, 2] * 50), short.budget)
    proposed(long, sequence(0, [1, 2] * 5000), long.budget)
    assert len(long._indices[0].last) == len(short._indices[0].last) == 6
    assert long.held_bytes <= short.held_bytes + 9_900 * 4 * 4


def test_a_proposal_reads_as_little_of_a_long_text_as_of_a_short_one() -> None:
    """Counted, not timed: list reads of one step."""

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

    assert reads(16_000) == reads(2_000) < 120
