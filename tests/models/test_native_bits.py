"""Verifying equals decoding, bit for bit: every node of every tree, in any batch, any chunks, on any number of threads.

A row depends on nothing but the tokens before it through the whole model, so no test here has a tolerance.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import permutations, product
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from native import FORMATS, THREADS, Plain, checkpoint, native, random_tree, rewritten, texts, threads
from paceline.kernels.native.vectors import PANEL
from paceline.models.native import NativeModel
from paceline.sequence import Sequence
from paceline.step import Feed, Verdict
from paceline.tree import DraftTree
from stepping import accept, missing, score, sequence

VOCABULARY = 97
PROMPTS = (1, 2, 31, 32, 33, 63, 64, 65, 70, 100, 127, 129)
"""Prompt lengths around the borders of groups, of panels and of a slab's first capacity."""

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"hidden_size": 88, "intermediate_size": 100, "head_dim": 16}),
    "sliding": ("mistral", {"sliding_window": 9, "head_dim": 48, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", {"sliding_window": 34, "final_logit_softcapping": 20.0}),
    "wide": ("llama", {"intermediate_size": 600, "num_hidden_layers": 1}),
    # experts, and queries of all heads normalised together
    "experts": ("olmoe", {"num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 100}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    room = tmp_path_factory.mktemp("bits")
    over = {"max_position_embeddings": 512}
    return {name: checkpoint(room / name, kind, **over, **more)[0] for name, (kind, more) in MODELS.items()}


@cache
def loaded(folder: Path, weights: str) -> tuple[NativeModel, Plain]:
    model = native(folder, weights)
    return model, Plain(model)


def same_bits(plain: Plain, got: torch.Tensor, owners: list[tuple[Sequence, DraftTree]]) -> bool:
    """Whether each row of a step that wants the nodes of these trees equals plain decoding."""
    wanted = [plain.after(text) for owner, tree in owners for text in texts(owner.tokens, tree)]
    return torch.equal(got, torch.stack(wanted))


def prefilled(model: NativeModel, cache: Any, owner: Sequence, keep: int, draw: random.Random) -> None:
    """Feed all but the last `keep` tokens in chunks of random size."""
    end = len(owner.tokens) - keep
    while (at := cache.length(owner.key)) < end:
        upto = min(at + draw.choice((1, 3, 8, 13, 40, 90)), end)
        score(model, cache, [Feed(owner, at, tuple(owner.tokens[at:upto]))])
        cache.commit([Verdict()])


def life(model: NativeModel, plain: Plain, draw: random.Random, nodes: int) -> None:
    """One to three sequences: any chunks, any trees, then a commit of a random path each, and the next trees."""
    cache = model.new_cache()
    # few texts, so that results of plain decoding are reused
    texts_ = [random.Random(number % 3).choices(range(VOCABULARY), k=130) for number in range(3)]
    owners = [sequence(key, draw.choice(texts_)[: draw.choice(PROMPTS)]) for key in range(draw.choice((1, 1, 2, 3)))]
    for owner in owners:
        prefilled(model, cache, owner, draw.randrange(1, min(len(owner.tokens), 5) + 1), draw)
    for _ in range(2):
        trees = [random_tree(draw, owner.root, draw.randrange(1, nodes + 1), VOCABULARY) for owner in owners]
        with threads(draw.choice(THREADS)):
            feeds = [missing(cache, owner, tree) for owner, tree in zip(owners, trees, strict=True)]
            got = score(model, cache, feeds).logits
        assert same_bits(plain, got, list(zip(owners, trees, strict=True)))
        verdicts = [accept(tree, tree.path(draw.randrange(len(tree))), draw.randrange(VOCABULARY)) for tree in trees]
        cache.commit(verdicts)
        for owner, verdict in zip(owners, verdicts, strict=True):
            owner.commit(verdict.tokens, ())


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_every_node_of_every_tree_has_the_bits_of_decoding(folders: dict[str, Path], name: str, weights: str) -> None:
    model, plain = loaded(folders[name], weights)
    draw = random.Random(f"{name} {weights}")
    for _ in range(6):
        life(model, plain, draw, nodes=32)


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("name", ["llama", "sliding", "gemma2"])
def test_a_branch_deeper_than_two_panels_has_the_bits_of_decoding(folders: dict[str, Path], name: str, weights: str) -> None:
    """Keys of the node's own tree are gathered panel by panel as well, and a window may begin within the tree."""
    model, plain = loaded(folders[name], weights)
    text, deep = random.Random(15).choices(range(VOCABULARY), k=40 + 2 * PANEL + 3), 2 * PANEL + 3
    for count in THREADS:
        cache, owner = model.new_cache(), sequence(0, text[:40])
        prefilled(model, cache, owner, 1, random.Random(16))
        # its last node turns the chain into a tree
        tree = DraftTree((owner.root, *text[40:], 96), (-1, *range(deep), 0))
        with threads(count):
            got = score(model, cache, [missing(cache, owner, tree)]).logits
        assert same_bits(plain, got, [(owner, tree)])
        verdict = accept(tree, tree.path(deep), 3)
        cache.commit([verdict])
        owner.commit(verdict.tokens, ())
        then = DraftTree((owner.root, 5, 6), (-1, 0, 0))
        assert same_bits(plain, score(model, cache, [missing(cache, owner, then)]).logits, [(owner, then)])


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("count", THREADS)
def test_one_to_32_rows_have_the_bits_of_one(folders: dict[str, Path], weights: str, count: int) -> None:
    """As for a draft of that many rows, behind a prompt that ends within a panel."""
    model, plain = loaded(folders["llama"], weights)
    text = random.Random(7).choices(range(VOCABULARY), k=40 + 32)
    cache, owner = model.new_cache(), sequence(0, text[:40])
    prefilled(model, cache, owner, 1, random.Random(0))
    with threads(count):
        for rows in range(1, 33):
            tree = DraftTree.chain(owner.root, text[40 : 39 + rows], "test")
            got = score(model, cache, [missing(cache, owner, tree)]).logits
            # plain decoding may have used the same model on one thread
            assert model._call["threads"] == count
            assert same_bits(plain, got, [(owner, tree)]), rows


@pytest.mark.parametrize("weights", ["fp32", "fp16"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["llama", "sliding"])
def test_a_drafted_token_that_is_no_number_harms_none_before_it(
    folders: dict[str, Path], tmp_path: Path, name: str, number: float, weights: str
) -> None:
    """The keys of one tile are weighted together, and zero times NaN is NaN. All rows that see the token become NaN."""
    embedding = load_file(folders[name] / "model.safetensors")["model.embed_tokens.weight"]
    embedding[9] = number
    folder = Path(copytree(folders[name], tmp_path / name))
    model, found = native(rewritten(folder, **{"model.embed_tokens.weight": embedding}), weights), []
    for tokens in ([], [6, 9, 5]):
        cache, owner = model.new_cache(), sequence(0, [5, 7, 3])
        found.append(score(model, cache, [missing(cache, owner, DraftTree.chain(3, tokens, "one"))]).logits)
    assert torch.equal(found[1][:1], found[0])
    assert found[1].isfinite().all(1).tolist() == [True, True, False, False]
    assert found[1][2:].isnan().all()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("count", THREADS)
def test_a_prompt_in_any_chunks_has_the_bits_of_decoding(folders: dict[str, Path], weights: str, count: int) -> None:
    """Each step reads what earlier chunks cached; chunks up to the whole prompt, so that products have several row tiles."""
    model, plain = loaded(folders["llama"], weights)
    text = random.Random(8).choices(range(VOCABULARY), k=140)
    with threads(count):
        for chunk in (1, 12, 13, 25, 64, 139):
            cache, owner = model.new_cache(), sequence(0, text)
            for upto in (*range(chunk, 139, chunk), 139):
                score(model, cache, [missing(cache, owner, upto=upto)])
                cache.commit([Verdict()])
            got = score(model, cache, [missing(cache, owner, DraftTree.root(owner.root))]).logits
            assert same_bits(plain, got, [(owner, DraftTree.root(owner.root))]), chunk


@pytest.mark.parametrize("weights", ["fp32", "int8", "w8a8"])
def test_a_big_batch_has_the_bits_of_single_sequences(folders: dict[str, Path], weights: str) -> None:
    """Sequences of different lengths decode in one step: many segments, several tiles of rows."""
    model, plain = loaded(folders["sliding"], weights)
    text = random.Random(9).choices(range(VOCABULARY), k=60)
    owners = [sequence(key, text[: key + 2]) for key in range(36)]
    cache = model.new_cache()
    for owner in owners:
        prefilled(model, cache, owner, 1, random.Random(owner.key))
    for count in THREADS:
        trees = [DraftTree.root(owner.root) for owner in owners]
        feeds = [missing(cache, owner, tree) for owner, tree in zip(owners, trees, strict=True)]
        with threads(count):
            got = score(model, cache, feeds).logits
        assert same_bits(plain, got, list(zip(owners, trees, strict=True)))


@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("told", [False, True])
def test_rows_without_wanted_logits_skip_the_last_layer_and_change_no_bit(
    folders: dict[str, Path], name: str, weights: str, told: bool
) -> None:
    """A chunk, a prompt that ends at its root and a tree, in any order, in one step; and then the caches they left."""
    model, plain = loaded(folders[name], weights)
    text = random.Random(13).choices(range(VOCABULARY), k=80)
    for order, count in product(permutations(range(3)), THREADS):
        cache, owners = model.new_cache(), [sequence(key, text[key:]) for key in range(3)]
        prefilled(model, cache, owners[2], 1, random.Random(14))
        trees = [None, DraftTree.root(owners[1].root), DraftTree((owners[2].root, 5, 6, 7), (-1, 0, 0, 1))]
        feeds = [
            Feed(owners[0], 0, tuple(text[:33])),
            Feed(owners[1], 0, tuple(owners[1].tokens), trees[1], told),
            missing(cache, owners[2], trees[2]),
        ]
        with threads(count):
            got = score(model, cache, [feeds[one] for one in order]).logits
        answered = [(owners[one], tree) for one in order if (tree := trees[one]) is not None]
        rows = sum(len(tree) for _, tree in answered)
        assert same_bits(plain, got[:rows], answered)
        if told:
            assert torch.equal(got[rows:], torch.stack([plain.after(text[1:end]) for end in range(2, 80)]))
        cache.commit([Verdict() if trees[one] is None else Verdict((), (3,), 0) for one in order])
        whole = [(owners[0], DraftTree.root(owners[0].root)), (sequence(1, [*text[1:], 3]), DraftTree.root(3))]
        assert same_bits(plain, score(model, cache, [missing(cache, *pair) for pair in whole]).logits, whole)


def test_scratch_grows_without_a_trace(folders: dict[str, Path]) -> None:
    """A small step of a new model, a long one, a large batch, then the small one again; on one thread and on two."""
    plain = loaded(folders["gemma2"], "int8")[1]
    model = native(folders["gemma2"], "int8")
    text = random.Random(10).choices(range(VOCABULARY), k=300)
    short, long = sequence(0, text[:3]), sequence(1, text)
    batch = [sequence(key, text[:key]) for key in range(2, 30)]

    def run(owners: list[Sequence]) -> None:
        cache = model.new_cache()
        trees = [DraftTree((owner.root, 5, 6), (-1, 0, 0)) for owner in owners]
        got = score(model, cache, [missing(cache, *pair) for pair in zip(owners, trees, strict=True)]).logits
        assert same_bits(plain, got, list(zip(owners, trees, strict=True)))

    for count, owners in zip((1, *THREADS, *THREADS), ([short], [long], batch, [short, long], [short]), strict=False):
        with threads(count):
            run(owners)


def test_doubling_slabs_under_a_running_sequence_changes_no_bit(folders: dict[str, Path]) -> None:
    """The first capacity is 128: a tree across it, and a commit right behind."""
    model, plain = loaded(folders["llama"], "fp32")
    draw = random.Random(11)
    cache, owner = model.new_cache(), sequence(0, draw.choices(range(VOCABULARY), k=120))
    prefilled(model, cache, owner, 1, draw)
    for _ in range(4):
        tree = random_tree(draw, owner.root, 20, VOCABULARY)
        got = score(model, cache, [missing(cache, owner, tree)]).logits
        assert same_bits(plain, got, [(owner, tree)])
        verdict = accept(tree, tree.path(max(range(20), key=tree.depth.__getitem__)), 3)
        cache.commit([verdict])
        owner.commit(verdict.tokens, ())
    assert cache.slab(0).capacity > 128


def test_rejected_drafts_and_truncated_texts_change_no_later_bit(folders: dict[str, Path]) -> None:
    """Abandoned steps, truncated sequences and released keys leave stale numbers in slots, which must not be read."""
    model, plain = loaded(folders["sliding"], "fp32")
    draw = random.Random(12)
    cache, owner = model.new_cache(), sequence(0, draw.choices(range(VOCABULARY), k=70))
    prefilled(model, cache, owner, 1, draw)
    score(model, cache, [missing(cache, owner, random_tree(draw, owner.root, 32, VOCABULARY))])
    cache.truncate(0, 30)
    cache.fork(0, 1)
    other = sequence(1, [*owner.tokens[:30], 4, 5])
    owners = [owner, other]
    trees = [random_tree(draw, one.root, 9, VOCABULARY) for one in owners]
    got = score(model, cache, [missing(cache, *pair) for pair in zip(owners, trees, strict=True)]).logits
    assert same_bits(plain, got, list(zip(owners, trees, strict=True)))
