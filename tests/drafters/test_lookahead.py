"""Lookahead: the window against its definition by levels and columns; the pool against the history of its n-grams."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fakes import TableModel, truth
from paceline import LLM
from paceline.bench.builtin import built_in
from paceline.budget import Budget
from paceline.drafters.lookahead import LookaheadDrafter, Options
from paceline.lookups.ngram_pool import NgramPool
from paceline.models.base import Scores
from paceline.models.embedded import embedded_models
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree
from scored import GREEDY, SAMPLED, Run, request

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

VOCABULARY = 50
Path = tuple[int, ...]


def chosen_after(root: int, path: Path) -> int:
    """The choice of a simulated target at a probe."""
    return hash((root, *path, 17)) % VOCABULARY


class Levels:
    """The window as in the paper: `levels[0]` is the first level without the root, its column 0; filled level by level."""

    def __init__(self, options: Options, tokens: list[int]) -> None:
        self.width, self.depth = options.window, options.ngram - 1
        self.levels = [tokens]

    def paths(self) -> dict[tuple[int, int], Path]:
        """(column, level) -> the tokens below the root visible to this row, its own last; none for the root."""
        first, *others = self.levels
        seen = {(column, 0): tuple(first[:column]) for column in range(len(first) + 1)}
        for level, tokens in enumerate(others, 1):
            seen |= {(column, level): (*seen[column, level - 1], token) for column, token in enumerate(tokens)}
        return seen

    def move(self, root: int) -> list[Path]:
        """Add the choices at the last level; returns the completed n-grams."""
        last, paths = len(self.levels) - 1, self.paths()
        columns = range(len(self.levels[last]) + (last == 0))
        new = [chosen_after(root, paths[column, last]) for column in columns]
        if len(self.levels) < self.depth:
            self.levels = [*(tokens[1:] for tokens in self.levels), new[1:]]
            return []
        assert len(new) == self.width
        firsts = [root, *self.levels[0]]
        ngrams = [(firsts[c], *(tokens[c] for tokens in self.levels[1:]), new[c]) for c in columns]
        moved = [*self.levels[1:], new]
        self.levels = [moved[0][1:], *moved[1:]]
        return ngrams


class History:
    """All n-grams ever seen, in order."""

    def __init__(self, width: int) -> None:
        self.width, self.seen = width, list[Path]()

    def behind(self, token: int) -> list[Path]:
        """The last `width` different continuations of a token, the latest first."""
        behind = [ngram[1:] for ngram in reversed(self.seen) if ngram[0] == token]
        return list(dict.fromkeys(behind))[: self.width]


def window_paths(tree: DraftTree) -> list[Path]:
    return [tuple(tree.tokens[step] for step in tree.path(node)) for node in range(tree.candidates, len(tree))]


OPTIONS = st.builds(
    lambda window, ngram, guesses, depth: Options(window=window, ngram=ngram, guesses=guesses, depth=depth),
    st.integers(1, 6),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(1, 5),
)
TEXTS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(OPTIONS, TEXTS, st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=9))
def test_the_window_is_that_of_the_paper(options: Options, prompt: list[int], emitted: list[list[int]]) -> None:
    drafter, owner = LookaheadDrafter(options), request(prompt)
    wide, learnt = options.window + options.ngram - 3, 0
    levels = Levels(options, (prompt[-wide - 1 :] * (wide + 1))[1 : wide + 1])
    history = History(options.guesses)
    for tokens in emitted:
        tree = drafter.propose([owner], [drafter.budget])[0]
        text = owner.tokens
        while learnt + options.ngram <= len(text):
            history.seen.append(tuple(text[learnt : learnt + options.ngram]))
            learnt += 1
        assert sorted(window_paths(tree)) == sorted(path for place, path in levels.paths().items() if place != (0, 0))
        first = {word[: options.ngram - 1] for word in candidate_paths(tree)}
        assert {word for word in first if len(word) == options.ngram - 1} == set(history.behind(owner.root))
        logits = torch.zeros(len(tree), VOCABULARY)
        for node in range(len(tree)):
            logits[node, chosen_after(owner.root, tuple(tree.tokens[step] for step in tree.path(node)))] = 1.0
        history.seen += levels.move(owner.root)
        owner.commit(tuple(tokens), ("",) * len(tokens))
        drafter.observe([owner], [tree], [Verdict((), tuple(tokens))], Scores(logits))


def candidate_paths(tree: DraftTree) -> list[Path]:
    return [tuple(tree.tokens[step] for step in tree.path(node)) for node in range(1, tree.candidates)]


@given(OPTIONS, TEXTS, st.integers(0, 20), st.integers(0, 6), st.sampled_from([GREEDY, SAMPLED]))
def test_lookahead_keeps_within_its_granted_budget(
    options: Options, prompt: list[int], nodes: int, depth: int, params: SamplingParams
) -> None:
    run = Run(LookaheadDrafter(options), TableModel(6, memory=1), request(prompt, params))
    for at in range(8):
        tree = run.step(Budget(nodes, depth) if at % 3 else None).proposed
        assert len(tree) <= (nodes if at % 3 else run.drafter.budget.nodes) + 1
        assert max(tree.depth) <= (depth if at % 3 else run.drafter.budget.depth)


def test_the_whole_lookahead_window_fits_into_its_own_budget() -> None:
    for window in range(1, 7):
        for ngram in range(2, 6):
            drafter = LookaheadDrafter(Options(window=window, ngram=ngram, guesses=2, depth=3))
            run = Run(drafter, TableModel(6, memory=1), request([1, 2, 3, 4]))
            for _ in range(9):
                probes = run.step().proposed.probes
                columns = drafter._states[0].columns
            assert (len(columns), probes) == (window, window * (ngram - 1) - 1)


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=30), st.integers(1, 3), st.integers(1, 7))
def test_the_pool_guesses_what_was_seen_last_and_goes_on_from_there(ngrams: list[list[int]], width: int, depth: int) -> None:
    pool, history = NgramPool(3, width), History(width)
    for ngram in ngrams:
        pool.add(ngram)
        history.seen.append(tuple(ngram))
    for root in range(4):
        paths, shares = pool.guesses(root, depth)
        expected = history.behind(root)
        for path, start, share in zip(paths, expected, shares, strict=True):
            whole = list(start)
            while len(whole) < depth and history.behind(whole[-1]):
                whole += history.behind(whole[-1])[0]
            assert list(path) == whole[:depth]
            assert len(share) >= len(path)
            assert all(0 < one < 1 for one in share)


def test_ngrams_seen_more_often_have_a_higher_confidence() -> None:
    pool = NgramPool(2, 2)
    for ngram in ((1, 2), (1, 2), (1, 2), (1, 3)):
        pool.add(ngram)
    assert pool.guesses(1, 1) == ([(3,), (2,)], [[0.2], [0.6]])


def test_the_pool_stays_bounded() -> None:
    pool = NgramPool(2, 1)
    pool.learn(list(range(10_000)), 0)
    full = pool.held_bytes
    pool.learn(list(range(20_000, 30_000)), 0)
    assert pool.held_bytes == full
    assert pool.guesses(20_000, 1) == ([], [])
    assert pool.guesses(29_998, 1)[0] == [(29_999,)]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_lookahead_trimmed_beside_other_drafts_keeps_the_text_of_plain_decoding(params: SamplingParams) -> None:
    model = TableModel(6, memory=2)
    run, plain = (Run(LookaheadDrafter(Options(window=3, ngram=3)), model, request([1, 2, 3], params)) for _ in range(2))
    taken = []
    for at in range(40):
        right = truth(model, run.owner)
        other = Run(LookaheadDrafter(Options(window=2, ngram=3)), model, Sequence(3, tuple(run.owner.tokens), params, 5))
        tree = other.drafter.propose([other.owner], [other.drafter.budget])[0]
        # the other drafter's probes have another source name
        other_tree = DraftTree(tree.tokens, tree.parents, sources=("", *["other"] * (len(tree) - 1)), probes=tree.probes)
        beside = [DraftTree.chain(run.owner.root, (right, 5), "chain"), DraftTree.root(run.owner.root), other_tree][at % 3]
        taken.append(run.step(beside=beside, room=(3, 6, 30)[at % 5 % 3]))
    while len(plain.owner.tokens) < len(run.owner.tokens):
        plain.step(Budget(0, 0))
    assert plain.owner.tokens[: len(run.owner.tokens)] == run.owner.tokens
    assert any(one.verdict.accepted for one in taken)
    assert {"lookahead", "other"} <= {source for one in taken for source in one.seen.sources[one.seen.candidates :]}


def test_a_trimmed_lookahead_window_does_not_advance() -> None:
    drafter = LookaheadDrafter(Options(window=3, ngram=2))
    run = Run(drafter, TableModel(6), request([1, 2, 3]))
    run.step()
    before = [column[0] for column in drafter._states[0].columns[1:]]
    run.step(room=2)
    assert [column[0] for column in drafter._states[0].columns[1:]] == before
    run.step()
    assert [column[0] for column in drafter._states[0].columns[1:]] != before


def test_a_released_sequence_starts_anew_from_its_tokens() -> None:
    run = Run(LookaheadDrafter(Options()), TableModel(9), request([4, 1, 2, 7, 7, 3]))
    for _ in range(5):
        run.step()
    assert run.drafter.sequence_bytes > 0
    run.drafter.release(0)
    assert run.drafter.sequence_bytes == 0
    fresh = LookaheadDrafter(Options())
    assert run.drafter.propose([run.owner], [fresh.budget]) == fresh.propose([run.owner], [fresh.budget])


@given(OPTIONS, TEXTS, st.integers(0, 12), TEXTS)
def test_a_truncated_text_keeps_its_window_and_its_new_tokens_enter_the_pool(
    options: Options, text: list[int], kept: int, more: list[int]
) -> None:
    drafter, owner, kept = LookaheadDrafter(options), request(text[:1]), min(max(kept, 1), len(text))
    owner.commit(tuple(text[1:]), ())
    drafter.propose([owner], [drafter.budget])
    columns = [list(column) for column in drafter._states[0].columns]
    owner.take_back(kept)
    drafter.truncate(0, kept)
    assert drafter._states[0].columns == columns
    owner.commit(tuple(more), ())
    drafter.propose([owner], [drafter.budget])
    pool, size = NgramPool(options.ngram, options.guesses), options.ngram
    pool.learn(text, 0)
    pool.learn(owner.tokens, max(kept - size + 1, 0))
    assert drafter._states[0].pool._grams == pool._grams


def test_a_step_without_probes_after_truncation_does_not_advance_the_window() -> None:
    drafter, owner = LookaheadDrafter(Options(window=1, ngram=2)), request([1])
    owner.commit((2, 3), ())
    drafter.propose([owner], [drafter.budget])
    columns = [list(column) for column in drafter._states[0].columns]
    owner.take_back(2)
    drafter.truncate(0, 2)
    nothing = DraftTree.root(owner.root)
    drafter.observe([owner], [nothing], [Verdict((), (3,))], Scores(torch.zeros(1, 6)))
    assert drafter._states[0].columns == columns


@pytest.mark.skipif(not embedded_models(), reason="the embedded weights are not part of this checkout")
@pytest.mark.parametrize("task", ["e2e", "sql", "story", "maths", "code"])
def test_lookahead_emits_over_1_2_tokens_per_step_on_the_embedded_model(task: str) -> None:
    llm = LLM(draft="lookahead")
    done = [llm.generate(prompt, SamplingParams(max_tokens=96))[0].speculation for prompt in built_in(task)[0]]
    assert sum(one.emitted_tokens for one in done) / sum(one.steps for one in done) > 1.2
