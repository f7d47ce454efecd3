"""Unigrams and bigrams: their counts against a plain count of the whole text, and the trees drafted from them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from following import proposed, request
from paceline.budget import Budget
from paceline.drafters import bigram, unigram
from paceline.lookups.counts import Counts, likeliest
from paceline.lookups.textfile import tokens_of_file
from paceline.tree import DraftTree

settings.register_profile("still", derandomize=True, deadline=None, max_examples=100, database=None)
settings.load_profile("still")

TEXTS = st.lists(st.integers(0, 5), min_size=1, max_size=60)
WIDTHS = st.integers(1, 4)


def surroundings(vocab_size: int = 256) -> Any:
    """Surroundings with a tokenizer of bytes."""
    return SimpleNamespace(
        tokenizer=SimpleNamespace(encode=lambda text, special: list(text.encode())), target=SimpleNamespace(vocab_size=vocab_size)
    )


def written(folder: Path, text: str) -> str:
    (folder / "text").write_text(text, encoding="utf-8")
    return str(folder / "text")


def checked(counts: Counts, context: int, wanted: Counter[int], width: int) -> None:
    """Checks the most frequent tokens of a context; equally frequent ones may come in any order."""
    best = counts.best(context)
    assert counts.total(context) == wanted.total()
    assert [count for _, count in best] == [count for _, count in wanted.most_common(width)]
    assert all(wanted[token] == count for token, count in best)
    assert len({token for token, _ in best}) == len(best)


@given(TEXTS, WIDTHS)
def test_counts_that_grew_and_counts_of_a_whole_text_are_a_plain_count(text: list[int], width: int) -> None:
    pairs = list(pairwise(text))
    grown = Counts(width)
    for context, token in pairs:
        grown.add(context, token)
    array = np.asarray(text, np.int32)
    whole = Counts.of_text(array[:-1], array[1:], width)
    for context in range(6):
        wanted = Counter(token for before, token in pairs if before == context)
        checked(grown, context, wanted, width)
        checked(whole, context, wanted, width)


def test_of_equally_common_tokens_the_latest_comes_first() -> None:
    counts = Counts(2)
    for token in (1, 2, 1, 2, 3):
        counts.add(0, token)
    assert counts.best(0) == [(2, 2), (1, 2)]


def test_the_likeliest_nodes_make_the_tree_each_with_its_ancestors() -> None:
    follow = {1: [(2, 0.9), (3, 0.3)], 2: [(4, 0.6), (5, 0.1)], 3: [(6, 0.9)]}
    tree = likeliest(1, lambda token: follow.get(token, []), "some", Budget(4, 3))
    assert tree.tokens == (1, 2, 4, 3, 6)
    assert tree.parents == (-1, 0, 1, 0, 3)
    assert tree.confidences == (1.0, 0.9, 0.6, 0.3, 0.9)
    assert likeliest(1, lambda token: follow.get(token, []), "some", Budget(4, 3), worth=0.28).tokens == (1, 2, 4, 3)
    assert likeliest(1, lambda token: follow.get(token, []), "some", Budget(9, 3, floor=0.5)).tokens == (1, 2, 4, 3, 5)
    assert likeliest(1, lambda token: follow.get(token, []), "some", Budget(9, 1)).tokens == (1, 2, 3)


def test_unigrams_of_a_request_are_its_commonest_tokens() -> None:
    drafter, owner = unigram.UnigramDrafter(unigram.Options(width=2, depth=2)), request([7, 5, 7, 5, 7, 9])
    tree = proposed(drafter, owner)
    assert list(tree.children[0]) == [7, 5]
    assert len(tree) == 5
    assert tree.confidences[1] == pytest.approx(3 / 14)
    owner.commit((5, 5), ("", ""))
    assert list(proposed(drafter, owner).children[0]) == [5, 7]


def test_bigrams_of_a_request_are_what_followed_its_last_token() -> None:
    drafter, owner = bigram.BigramDrafter(bigram.Options(depth=4)), request([1, 2, 3, 1, 2, 4, 1, 2, 3, 1])
    tree = proposed(drafter, owner)
    assert tree.is_chain
    assert tree.tokens == (1, 2, 3, 1, 2), "a chain may repeat its tokens"
    assert tree.confidences[1:3] == (pytest.approx(3 / 4), pytest.approx(2 / 4))
    wide = proposed(bigram.BigramDrafter(bigram.Options(width=2)), request([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]))
    assert list(wide.children[0]) == [3, 4]


def test_a_token_with_no_followers_falls_back_on_the_commonest_tokens() -> None:
    tree = proposed(bigram.BigramDrafter(bigram.Options(depth=1)), request([1, 1, 1, 2]))
    assert tree.tokens == (2, 1)
    assert tree.confidences[1] == pytest.approx(3 / 5)
    tree = proposed(bigram.BigramDrafter(bigram.Options(depth=1, width=2)), request([1, 5, 1, 1, 5]))
    assert list(tree.children[0]) == [1, 5], "and frequent tokens fill up after few followers"


def test_what_is_unlikely_is_not_drafted() -> None:
    text = [1, *[token for other in range(10, 60) for token in (other, 1)]]
    assert len(proposed(bigram.BigramDrafter(bigram.Options()), request(text))) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60), st.integers(0, 60), WIDTHS)
def test_counts_taken_back_equal_counts_that_were_never_added(pairs: list[tuple[int, int]], kept: int, width: int) -> None:
    cut, fresh, kept = Counts(width), Counts(width), min(kept, len(pairs))
    for pair in pairs:
        cut.add(*pair)
    assert cut.take_back(len(pairs) - kept)
    for pair in pairs[:kept]:
        fresh.add(*pair)
    assert vars(cut) == vars(fresh)


def test_take_back_refuses_more_tokens_than_its_history_holds() -> None:
    counts = Counts(1)
    for token in range(1000):
        counts.add(0, token % 7)
    before = counts.best(0)
    assert not counts.take_back(999)
    assert (counts.total(0), counts.best(0)) == (1000, before)
    assert counts.held_bytes < 256 * 140 + 2000


def drafter_of(module: Any, options: Any) -> Any:
    return getattr(module, f"{module.__name__.rpartition('.')[2].title()}Drafter")(options)


@pytest.mark.parametrize("module", [unigram, bigram])
@given(text=TEXTS, cuts=st.lists(st.tuples(st.integers(0, 60), TEXTS), min_size=1, max_size=6), width=WIDTHS)
def test_a_text_that_is_cut_back_time_and_again_is_that_of_a_fresh_drafter(
    module: Any, text: list[int], cuts: list[tuple[int, list[int]]], width: int
) -> None:
    options = module.Options(width=width, depth=3)
    drafter, owner = drafter_of(module, options), request(text[:1])
    owner.commit(tuple(text[1:]), ())
    for kept, more in cuts:
        proposed(drafter, owner)
        del owner.tokens[kept:]
        drafter.truncate(owner.key, kept)
        owner.commit(tuple(more), ())
        assert proposed(drafter, owner) == proposed(drafter_of(module, options), owner)


@pytest.mark.parametrize("module", [unigram, bigram])
@given(text=TEXTS, more=TEXTS, kept=st.integers(1, 60))
def test_a_drafter_drafts_as_a_fresh_one_after_truncate_and_release(
    module: Any, text: list[int], more: list[int], kept: int
) -> None:
    drafter = drafter_of(module, module.Options(width=3))
    owner = request(text)
    proposed(drafter, owner)
    owner.commit(tuple(more), ("",) * len(more))
    before = proposed(drafter, owner)
    assert before == proposed(drafter_of(module, module.Options(width=3)), owner)
    assert drafter.sequence_bytes > 0
    del owner.tokens[kept:]
    drafter.truncate(owner.key, kept)
    assert proposed(drafter, owner) == proposed(drafter_of(module, module.Options(width=3)), owner)
    drafter.release(owner.key)
    drafter.release(owner.key)
    assert drafter.sequence_bytes == 0


def test_a_file_is_counted_once_for_all_requests(tmp_path: Path) -> None:
    file = written(tmp_path, "the cat and the hat and the bat")
    drafter = bigram.build(bigram.Options(file=file, depth=3), surroundings())
    assert tree_text(proposed(drafter, request(b"x t"))) == "the "
    assert tree_text(proposed(drafter, request(b"Q", key=1)))[0] == "Q", "a token that is not in the file"
    assert drafter.sequence_bytes == 0
    commonest = unigram.build(unigram.Options(file=file), surroundings())
    assert tree_text(proposed(commonest, request(b"q"))) == "q "


def tree_text(tree: DraftTree) -> str:
    return bytes(tree.tokens).decode()


@pytest.mark.parametrize("module", [unigram, bigram])
def test_a_file_of_one_token_is_enough(module: Any, tmp_path: Path) -> None:
    drafter = module.build(module.Options(file=written(tmp_path, "a"), depth=1), surroundings())
    assert tree_text(proposed(drafter, request(b"b"))) in ("ba", "b")


def test_tokens_that_the_target_does_not_know_are_left_out(tmp_path: Path) -> None:
    assert list(tokens_of_file(written(tmp_path, "a~b"), surroundings().tokenizer.encode, 120)) == [97, 98]


def test_a_large_file_is_tokenised_in_pieces_that_end_with_a_line(tmp_path: Path) -> None:
    pieces: list[str] = []

    def encode(text: str, special: bool) -> list[int]:
        assert not special
        pieces.append(text)
        return list(text.encode())

    text = "some words and then a line\n" * 10_000 + "x" * 100_000
    assert bytes(list(tokens_of_file(written(tmp_path, text), encode, 256))).decode() == text
    assert len(pieces) > 3
    assert all(piece.endswith("\n") for piece in pieces if not piece.endswith("x"))

    pieces.clear()
    text = "no line ends here " * 10_000
    assert bytes(list(tokens_of_file(written(tmp_path, text), encode, 256))).decode() == text
    assert len(pieces) > 2
    assert all(piece.startswith(" ") for piece in pieces[1:])
