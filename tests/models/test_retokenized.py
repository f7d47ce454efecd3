"""Drafts by way of text: the shadow always spells the committed text, and drafts are re-encoded with the target's tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from foreign import KINDS, pieces, save_all
from paceline.budget import Budget
from paceline.cascade import Cascade
from paceline.drafters.base import Drafter
from paceline.drafters.bigram import BigramDrafter, Options as BigramOptions
from paceline.drafters.ngram import NgramDrafter, Options as NgramOptions
from paceline.drafters.suffix import Options as SuffixOptions, SuffixDrafter
from paceline.models.base import LanguageModel
from paceline.models.load import load_model
from paceline.models.pieces import Pieces
from paceline.models.retokenized import RetokenizedModel, _seam, _whole
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.match import Match

WORDS = [" the", " thin", " then", " on", " band", "\n", " h\u00e9", " \U0001f600", ",", " in", " andante"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_all(tmp_path_factory.mktemp("retokenized"))


def retokenized(folder: Path, kind: str, ahead: Drafter | None = None) -> RetokenizedModel:
    """ahead: the drafter inside the draft model, if any."""
    model = load_model(folder / kind)
    if ahead is not None:
        model = Cascade(model, ahead, Match(), FixedPolicy())
    return RetokenizedModel(model, pieces(folder / kind), pieces(folder / "target"))


def texts(folder: Path, seed: int, words: int) -> list[int]:
    """A random text in tokens of the target."""
    draw = random.Random(seed)
    return Tokenizer(folder / "target").encode("on" + "".join(draw.choices(WORDS, k=words)))


def check_shadow(model: RetokenizedModel, owner: Sequence, folder: Path, kind: str) -> None:
    """The shadow spells the text in the model's tokens, and its fields and cache are consistent."""
    shadow, own = model._shadows[owner.key], pieces(folder / kind)
    text = pieces(folder / "target").bytes_of(owner.tokens)
    assert bytes(shadow.text) == text
    assert own.bytes_of(shadow.tokens).removeprefix(b" ") == text.removeprefix(b" ")
    assert shadow.tokens[: len(own.opening)] == list(own.opening)
    assert shadow.taken == len(owner.tokens)
    assert shadow.ends[-1] == len(text)
    assert [b - a for a, b in zip(shadow.ends, shadow.ends[1:], strict=False)][1:] == [
        len(own.of[token]) for token in shadow.tokens[2:]
    ]
    assert model._cache.length(owner.key) == len(shadow.cached)
    assert shadow.cached[: shadow.same] == shadow.tokens[: shadow.same]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_shadow_grows_with_its_text(folder: Path, kind: str, step: int) -> None:
    model, text = retokenized(folder, kind), texts(folder, 1, 30)
    whole = Tokenizer(folder / kind).encode(pieces(folder / "target").bytes_of(text).decode())
    owner = Sequence(0, tuple(text[:2]), SamplingParams(), seed=0)
    for at in range(2, len(text), step):
        model.extend([owner], [Budget(3, 3)], "m")
        check_shadow(model, owner, folder, kind)
        owner.commit(tuple(text[at : at + step]), ())
    model.extend([owner], [Budget(3, 3)], "m")
    check_shadow(model, owner, folder, kind)
    own = pieces(folder / kind)
    ours, wanted = ([token for token in tokens if own.of[token]] for tokens in (model._shadows[0].tokens, whole))
    # however it grew, it is split like the whole text by the tokenizer
    assert ours == wanted


AHEAD: dict[str, Callable[[], Drafter | None]] = {
    "alone": lambda: None,
    "ngram": lambda: NgramDrafter(NgramOptions()),
    "bigram": lambda: BigramDrafter(BigramOptions()),
}


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_the_greedy_text_of_the_model(folder: Path, kind: str, ahead: str) -> None:
    """Equal to drafting anew from its own tokens, whatever was cached and drafted before; in a cascade too, although splitting a
    text again changes tokens that were shown to it as committed."""
    model, lone = retokenized(folder, kind, AHEAD[ahead]()), load_model(folder / kind)
    own, target, draw = pieces(folder / kind), pieces(folder / "target"), random.Random(3)
    owners = [Sequence(key, tuple(texts(folder, key, 4)), SamplingParams(temperature=key * 0.5), seed=key) for key in range(3)]
    drafted = 0
    for turn in range(8):
        trees = model.extend(owners, [Budget(4, 4), Budget(9, 6), Budget(2, 3)], "m")
        for owner, tree, most in zip(owners, trees, (4, 6, 2), strict=True):
            assert tree.is_chain
            assert tree.kind is Proposal.POINT
            assert len(tree) - 1 <= most
            assert all(0.0 <= confidence <= 1.0 for confidence in tree.confidences)
            said = greedy(lone, model._shadows[owner.key].tokens, 24)
            end = next((at for at, token in enumerate(said) if not own.of[token]), len(said))
            wanted = own.bytes_of(said[:end])
            assert wanted.startswith(target.bytes_of([token for token in tree.tokens[1:] if target.of[token]]))
            drafted += len(tree) - 1
        for owner, tree in zip(owners, trees, strict=True):
            # part of the draft is accepted, then other tokens follow
            kept = tree.tokens[1 : 1 + draw.randrange(len(tree))]
            owner.commit((*kept, *texts(folder, turn, 1)[1:]), ())
    assert drafted > 20


def greedy(model: LanguageModel, tokens: list[int], count: int) -> list[int]:
    said = list(tokens)
    with torch.inference_mode():
        while len(said) < min(len(tokens) + count, 128):
            owner = Sequence(0, tuple(said), SamplingParams(), seed=0)
            said.append(int(model.logits_after([(owner, tuple(said))], model.new_cache())[0].argmax()))
    return said[len(tokens) :]


def test_the_target_under_another_tokenizer_drafts_mostly_the_targets_own_text(folder: Path) -> None:
    target, model = load_model(folder / "target"), retokenized(folder, "shuffled")
    right = total = 0
    for key in range(12):
        owner = Sequence(key, (1, 80 + key, 120, 60, 100 + key), SamplingParams(), seed=key)
        (tree,) = model.extend([owner], [Budget(4, 4)], "m")
        right += tree.tokens[1:] == tuple(greedy(target, owner.tokens, 4)[: len(tree) - 1]) and len(tree) > 1
        total += 1
    assert right / total > 0.5


def test_special_tokens_divide_a_text(folder: Path) -> None:
    """An end of text in the middle, as between documents, becomes the model's own end of text."""
    model, own = retokenized(folder, "shuffled"), pieces(folder / "shuffled")
    text = [*texts(folder, 1, 3), 2, *texts(folder, 2, 3), 2]
    owner = Sequence(0, tuple(text), SamplingParams(), seed=0)
    model.extend([owner], [Budget(2, 2)], "m")
    tokens = model._shadows[0].tokens
    assert tokens.count(own.special["<end>"]) == 2
    assert tokens[-1] == own.special["<end>"]
    assert tokens.count(own.special["<s>"]) == 2


def test_a_truncated_shadow_is_rewritten_and_a_released_one_gone(folder: Path) -> None:
    model, text = retokenized(folder, "pieced"), texts(folder, 5, 12)
    owner = Sequence(0, tuple(text), SamplingParams(), seed=0)
    (first,) = model.extend([owner], [Budget(4, 4)], "m")
    model.truncate(0, 5)
    changed = Sequence(0, (*text[:5], *texts(folder, 6, 5)[1:]), SamplingParams(), seed=0)
    (then,) = model.extend([changed], [Budget(4, 4)], "m")
    check_shadow(model, changed, folder, "pieced")
    fresh = retokenized(folder, "pieced")
    assert fresh.extend([changed], [Budget(4, 4)], "m") == [then]
    assert fresh.extend([Sequence(1, tuple(text), SamplingParams(), seed=0)], [Budget(4, 4)], "m")[0].tokens == first.tokens
    assert model.held_bytes > 0
    model.release(0)
    assert model.held_bytes == 0


def test_a_draft_ends_with_the_context_of_the_model(folder: Path) -> None:
    model = retokenized(folder, "shuffled")
    for count in (100, 125, 128, 140):
        owner = Sequence(count, tuple(range(60, 60 + 90)) + (70,) * (count - 90), SamplingParams(), seed=0)
        (tree,) = model.extend([owner], [Budget(9, 9)], "m")
        assert (len(tree) == 1) == (len(model._shadows[count].tokens) > 128)


def test_nothing_is_drafted_without_a_budget(folder: Path) -> None:
    model, owner = retokenized(folder, "shuffled"), Sequence(0, (1, 70), SamplingParams(), seed=0)
    assert model.extend([owner], [Budget(0, 4)], "m") == [DraftTree.root(70)]
    assert model.held_bytes == 0


def test_nothing_is_drafted_for_a_text_without_any_token_of_the_model(folder: Path) -> None:
    """The target's padding tokens have no text, and a model without an opening token then has nothing to continue."""
    own, tokenizer = pieces(folder / "shuffled"), Tokenizer(folder / "target")
    own.opening = ()
    blank = len(pieces(folder / "target").of)
    model = RetokenizedModel(load_model(folder / "shuffled"), own, Pieces(tokenizer, blank + 8))
    owners = [Sequence(0, (blank,), SamplingParams(), seed=0), Sequence(1, tuple(texts(folder, 3, 4)), SamplingParams(), seed=0)]
    nothing, something = model.extend(owners, [Budget(3, 3)] * 2, "m")
    assert len(nothing) == 1 < len(something)


def test_seams_lie_where_words_begin(folder: Path) -> None:
    target = pieces(folder / "target")
    for seed in range(20):
        text = texts(folder, seed, 14)
        at = _seam(target, text)
        assert len(text) - 20 <= at <= len(text) - 10
        spaces = [place for place in range(len(text) - 20, len(text) - 9) if target.of[text[place]][:1] == b" "]
        assert at == (spaces[-1] if spaces else len(text) - 10)
    assert _seam(target, [70] * 30) == 20
    assert _seam(target, [70, 71]) == 0
    assert _seam(target, [70] * 28 + [2, 71]) == 29


def test_an_unfinished_character_at_the_end_is_left_out() -> None:
    text = "a\u00e9\u20ac\U0001f600z".encode()
    whole = {1, 3, 6, 10, 11}
    for size in range(len(text) + 1):
        assert _whole(text[:size]) == text[: max((end for end in whole if end <= size), default=0)]


def test_a_text_that_shares_its_beginning_reads_the_rest_alone(folder: Path) -> None:
    model, text = retokenized(folder, "pieced"), texts(folder, 5, 20)
    owner = Sequence(0, tuple(text), SamplingParams(), seed=0)
    model.extend([owner], [Budget(4, 4)], "m")
    model.settle(0)
    model.fork(0, 1, len(text))
    model.truncate(1, 15)
    model.release(0)
    # forked again before it was used
    model.fork(1, 2, 15)
    assert model._cache.length(2) == model._cache.length(1) > 0
    model.release(2)
    sharing = Sequence(1, (*text[:15], *texts(folder, 6, 5)[1:]), SamplingParams(), seed=0)
    model._brought_up(sharing)
    assert model._cache.length(1) >= 8
    check_shadow(model, sharing, folder, "pieced")
    (tree,) = model.extend([sharing], [Budget(4, 4)], "m")
    assert retokenized(folder, "pieced").extend([sharing], [Budget(4, 4)], "m") == [tree]
    model.release(1)
    assert not model._shadows
    assert not model._forked


def test_a_short_beginning_takes_no_room_for_the_text_it_comes_from(folder: Path) -> None:
    model, text = retokenized(folder, "pieced"), texts(folder, 5, 20)
    owner = Sequence(0, tuple(text), SamplingParams(), seed=0)
    model.extend([owner], [Budget(4, 4)], "m")
    model.settle(0)
    model.fork(0, 1, 6)
    assert 0 < model._cache.length(1) < model._cache.length(0) / 2
    sharing = Sequence(1, (*text[:6], *texts(folder, 6, 5)[1:]), SamplingParams(), seed=0)
    (tree,) = model.extend([sharing], [Budget(4, 4)], "m")
    assert retokenized(folder, "pieced").extend([sharing], [Budget(4, 4)], "m") == [tree]


def test_the_inner_drafter_learns_the_whole_of_an_ended_answer(folder: Path) -> None:
    """In the model's tokens, up to the last one."""
    model, text = retokenized(folder, "pieced", SuffixDrafter(SuffixOptions())), texts(folder, 5, 20)
    owner = Sequence(0, tuple(text[:44]), SamplingParams(), seed=0)
    model.extend([owner], [Budget(4, 4)], "m")
    owner.commit(tuple(text[44:]), ())
    owner.finish_reason = "stop"
    model.settle(0)
    model.release(0)
    following = Sequence(1, tuple(text[:66]), SamplingParams(), seed=0)
    shadow = model._brought_up(following)
    (tree,) = model._model._pair.drafter.propose([shadow.sequence], [Budget(8, 8)])  # pyright: ignore[reportAttributeAccessIssue]
    own = pieces(folder / "pieced")
    assert pieces(folder / "target").bytes_of(text[66:]).startswith(own.bytes_of(tree.tokens[1:]))
    assert len(tree) > 1


def test_a_model_whose_context_is_full_is_asked_no_more(folder: Path) -> None:
    model = retokenized(folder, "pieced")
    owner = Sequence(0, tuple(texts(folder, 5, 200)), SamplingParams(), seed=0)
    assert model.suits(owner)
    model.extend([owner], [Budget(4, 4)], "m")
    assert not model.suits(owner)


def test_a_text_is_put_together_without_copying_it_for_every_token(folder: Path) -> None:
    copied = 0

    class Counted(bytes):
        def __radd__(self, before: object) -> bytes:
            nonlocal copied
            if not isinstance(before, bytes):
                return NotImplemented
            copied += len(before)
            return before + bytes(self)

    target = Pieces(Tokenizer(folder / "target"), load_model(folder / "target").vocab_size)
    target.of[:] = map(Counted, target.of)
    model = RetokenizedModel(load_model(folder / "pieced"), pieces(folder / "pieced"), target)
    owner = Sequence(0, tuple(texts(folder, 5, 200)), SamplingParams(), seed=0)
    model._brought_up(owner)
    check_shadow(model, owner, folder, "pieced")
    assert copied == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_shadow_that_is_cut_back_is_what_the_tokens_alone_would_make(folder: Path, kind: str) -> None:
    """For any cut: within words and characters, and before special tokens."""
    model, anew, draw = retokenized(folder, kind), retokenized(folder, kind), random.Random(7)
    target, tokens = pieces(folder / "target"), tuple(texts(folder, 5, 20))
    for turn in range(150):
        model._brought_up(Sequence(0, tokens, SamplingParams(), seed=0))
        length = draw.randrange(max(len(tokens) - 30, 0), len(tokens) + 1)
        model.truncate(0, length)
        # do not cut within a character: its remaining bytes follow
        while _whole(target.bytes_of(tokens[:length])) != target.bytes_of(tokens[:length]):
            length += 1
        more = [*texts(folder, turn, draw.randrange(4))[1:], *([2] if draw.random() < 0.2 else [])]
        tokens = (*tokens[:length], *more, *texts(folder, turn + 1, 3)[1:])
        owner = Sequence(0, tokens, SamplingParams(), seed=0)
        anew.release(0)
        ours, wanted = model._brought_up(owner), anew._brought_up(owner)
        assert ours.tokens == wanted.tokens
        assert (ours.ends, ours.spans, ours.settled) == (wanted.ends, wanted.spans, wanted.settled)
        assert bytes(ours.text) == bytes(wanted.text)


def test_of_a_text_that_is_cut_back_again_and_again_the_end_alone_is_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cascade, where every draft is cut back."""
    model, text, characters = retokenized(folder, "pieced"), texts(folder, 5, 2000), 0
    encode = Tokenizer.encode

    def counting(self: Tokenizer, given: str, add_special: bool = True) -> list[int]:
        nonlocal characters
        characters += len(given)
        return encode(self, given, add_special)

    model._brought_up(Sequence(0, tuple(text), SamplingParams(), seed=0))
    monkeypatch.setattr(Tokenizer, "encode", counting)
    for turn in range(20):
        model.truncate(0, len(text) - 3)
        model._brought_up(Sequence(0, (*text[:-3], *texts(folder, turn, 1)[1:]), SamplingParams(), seed=0))
    assert 0 < characters < 20 * 1000


def test_a_token_beyond_the_vocabulary_has_no_text(folder: Path) -> None:
    """Inside a cascade the target's tokens are those of a draft model, which may have fewer rows than the whole cascade's target:
    a bias can choose one that it lacks."""
    model, owner = retokenized(folder, "pieced"), Sequence(1, tuple(texts(folder, 1, 4)), SamplingParams(), seed=1)
    model.extend([owner], [Budget(2, 2)], "m")
    owner.commit((len(pieces(folder / "target").of) + 3,), ("",))
    owner.finish_reason = "length"
    model.settle(owner.key)
    model.release(owner.key)
    assert not model._shadows
