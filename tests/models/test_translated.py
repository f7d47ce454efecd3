"""A model behind another tokenizer scores target tokens like its own, whatever the step."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
import torch

from foreign import KINDS, pieces, save_all
from native import random_tree
from paceline.budget import Budget
from paceline.cache.base import Branching
from paceline.growth import Growth
from paceline.models.base import LanguageModel
from paceline.models.load import load_model
from paceline.models.pieces import Pieces
from paceline.models.stateful import ReplayModel
from paceline.models.tokenizer import Tokenizer
from paceline.models.translated import TranslatedCache, TranslatedModel, Translation
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import caterpillar, optimal_tree
from stepping import accept, missing, score, sequence


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_all(tmp_path_factory.mktemp("translated"))


@cache
def translated(folder: Path, kind: str, store: str = "panels") -> tuple[LanguageModel, Translation, TranslatedModel]:
    """The model itself, its translation, and the model behind the target's tokenizer."""
    inner = load_model(folder / kind, native=store == "panels")
    if store == "replay":
        from transformers import AutoModelForCausalLM

        module = AutoModelForCausalLM.from_pretrained(folder / kind, attn_implementation="eager").eval()
        inner = ReplayModel(module, "tiny", 128, inner.eos_token_ids)
    translation = Translation(pieces(folder / "target"), pieces(folder / kind))
    return inner, translation, TranslatedModel(inner, translation)


def spelled(translation: Translation, tokens: list[int]) -> list[int]:
    return [own for at, token in enumerate(tokens) for own in translation.spelled(token, at == 0)]


def plain(inner: LanguageModel, translation: Translation, tokens: list[int]) -> torch.Tensor:
    """float32 [V of the target]: the model's logits after reading the text at once in its own tokens."""
    text = spelled(translation, tokens)
    owner = sequence(0, text)
    own = inner.logits_after([(owner, tuple(text))], inner.new_cache())[0]
    wanted = torch.full((len(translation.columns),), -torch.inf)
    for token, column in enumerate(translation.columns.tolist()):
        if 0 <= column < inner.vocab_size:
            wanted[token] = own[column]
    return wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", ["panels", "dense"])
def test_trees_are_scored_as_their_paths_would_be(folder: Path, kind: str, store: str) -> None:
    """Chunks, trees with tokens that are one or several of the model's, commits, truncations: logits depend only on the text."""
    inner, translation, model = translated(folder, kind, store)
    draw, held = random.Random(5), model.new_cache()
    owners = [sequence(0, [1, *draw.choices(range(3, 262), k=6)]), sequence(1, draw.choices(range(262), k=9))]
    with torch.inference_mode():
        for turn in range(4):
            trees = [random_tree(draw, owner.root, 7, 262) for owner in owners]
            feeds = [missing(held, *pair) for pair in zip(owners, trees, strict=True)]
            logits = score(model, held, feeds).logits.split([len(tree) for tree in trees])
            for owner, tree, rows in zip(owners, trees, logits, strict=True):
                for node in range(len(tree)):
                    text = [*owner.tokens, *(tree.tokens[step] for step in tree.path(node))]
                    assert torch.allclose(rows[node], plain(inner, translation, text), atol=1e-4)
            tips = [max(range(len(tree)), key=tree.depth.__getitem__) for tree in trees]
            verdicts = [accept(tree, tree.path(tip), draw.randrange(262)) for tree, tip in zip(trees, tips, strict=True)]
            held.commit(verdicts)
            for owner, verdict in zip(owners, verdicts, strict=True):
                owner.commit(verdict.tokens, ())
                assert held.length(owner.key) == len(owner.tokens) - 1
                check_inside(held, translation, owner)
            held.truncate(0, held.length(0) - turn)
            check_inside(held, translation, owners[0])
        held.fork(1, 2)
        held.release(1)
        assert (held.length(1), held.length(2)) == (0, len(owners[1].tokens) - 1)
        held.release(2)
        assert held.inner.length(2) == 0


def check_inside(held: TranslatedCache, translation: Translation, owner: Sequence) -> None:
    text = spelled(translation, owner.tokens[: held.length(owner.key)])
    assert held.inner.length(owner.key) == len(text)
    assert held.size(owner) == len(spelled(translation, owner.tokens))


def test_a_cache_that_falls_back_further_holds_whole_tokens(folder: Path) -> None:
    inner, translation, model = translated(folder, "pieced", "replay")
    assert model.branching is Branching.REPLAY
    draw, held = random.Random(2), model.new_cache()
    owner = sequence(0, draw.choices(range(3, 262), k=12))
    with torch.inference_mode():
        for turn in range(6):
            tree = DraftTree.chain(owner.root, draw.choices(range(262), k=4), "test")
            rows = score(model, held, [missing(held, owner, tree)]).logits
            text = list(owner.tokens)
            assert torch.allclose(rows[0], plain(inner, translation, text), atol=1e-4)
            assert torch.allclose(rows[4], plain(inner, translation, [*text, *tree.tokens[1:]]), atol=1e-4)
            verdict = accept(tree, tree.path(turn % 4), 7)
            held.commit([verdict])
            owner.commit(verdict.tokens, ())
            held.truncate(0, len(owner.tokens) - 1 - turn % 3)
            held_text = spelled(translation, owner.tokens[: held.length(0)])
            assert held.inner.length(0) == len(held_text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_read_as_one_that_means_the_same_or_spelled_out(folder: Path, kind: str) -> None:
    ours, theirs = pieces(folder / "target"), pieces(folder / kind)
    translation = Translation(ours, theirs)
    several = 0
    for token in range(3, 259 + 3):
        own = translation.spelled(token)
        assert theirs.bytes_of(own) == ours.of[token]
        column = int(translation.columns[token])
        if column >= 0:
            assert theirs.of[column] == ours.of[token]
            assert own == (column,)
        several += len(own) > 1
    # "the", and "in" or "th"
    assert several == 2
    assert translation.spelled(3, opens=True) == (*theirs.opening, *translation.spelled(3))
    assert translation.spelled(1, opens=True) == translation.spelled(1)
    drawn = [column for column in translation.columns.tolist() if column >= 0]
    assert len(drawn) == len(set(drawn)), "no token of the model counts twice"


def test_padding_tokens_of_the_target_can_be_spelled(folder: Path) -> None:
    ours = Pieces(Tokenizer(folder / "target"), 300)
    translation = Translation(ours, pieces(folder / "shuffled"))
    assert len(translation.columns) == 300
    assert len(translation.spelled(299)) == 1
    assert not bool((translation.columns[262:] >= 0).any())


def test_the_target_under_another_tokenizer_drafts_mostly_the_targets_own_tokens(folder: Path) -> None:
    """Coupled trees and drawn ones all use the target's ids."""
    target, (_, translation, model) = load_model(folder / "target"), translated(folder, "shuffled")
    assert translation.shared > 0.9
    params = SamplingParams(temperature=0.7)
    owners = [Sequence(key, (1, 80 + key, 120, 60), params, seed=key) for key in range(6)]
    for growth in (Growth(shape=caterpillar(4)), Growth(shape=optimal_tree((0.6, 0.2), 6, 3))):
        options = {"growth": growth, "vocab_size": 262, "source": "m"}
        trees = model.extend(owners, [Budget(9, 4)] * 6, model.new_cache(), **options)
        wanted = target.extend(owners, [Budget(9, 4)] * 6, target.new_cache(), **options)
        same = [tree.tokens == other.tokens for tree, other in zip(trees, wanted, strict=True)]
        # a token that only one of the two has is rare
        assert sum(same) >= 5
    (tree,) = model.extend(
        owners[:1], [Budget(9, 3)], model.new_cache(), growth=Growth(Proposal.IID, caterpillar(3)), vocab_size=262, source="m"
    )
    for probs in tree.proposals.values():
        assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)
        assert not bool(probs[translation.columns < 0].any())


def test_a_draft_ends_at_the_context_counted_in_the_models_own_tokens(folder: Path) -> None:
    _, translation, model = translated(folder, "pieced")
    # "the" is two tokens of the model
    the = pieces(folder / "target").tokens[b"the"]
    assert len(translation.spelled(the)) == 2
    for count in (60, 62, 63, 64):
        owner = Sequence(0, (1, *[the] * count), SamplingParams(), seed=0)
        (tree,) = model.extend(
            [owner], [Budget(9, 9)], model.new_cache(), growth=Growth(shape=caterpillar(9)), vocab_size=262, source="m"
        )
        assert len(tree) - 1 == max(128 - (1 + 2 * count) + 1, 0)


def test_the_eos_of_a_translated_model_is_the_targets(folder: Path) -> None:
    for kind in KINDS:
        assert translated(folder, kind)[2].eos_token_ids == {2}


def test_a_translated_cache_is_moved_without_a_copy(folder: Path) -> None:
    _, _, model = translated(folder, KINDS[0])
    held = model.new_cache()
    assert isinstance(held, TranslatedCache)
    owner = sequence(0, [1, *range(3, 60)])
    with torch.inference_mode():
        score(model, held, [missing(held, owner)])
    held.commit([Verdict()])
    slab = held.inner.slab(0)
    held.shrink(0)
    assert held.inner.slab(0) is slab or held.inner.slab(0).capacity < slab.capacity
    slab, length = held.inner.slab(0), held.length(0)
    held.move(0, 1)
    assert held.inner.slab(1) is slab
    assert (held.length(0), held.length(1)) == (0, length)


def test_a_cache_scores_no_step_but_the_staged_one(folder: Path) -> None:
    model = translated(folder, "shuffled")[2]
    held = model.new_cache()
    with pytest.raises(ValueError, match="not the one"):
        held.inner_step(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="nothing is staged"):
        held.commit([])
