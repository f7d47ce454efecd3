"""Tree attention: the result of a row depends on its text alone, bit for bit, however it is fed and in any batch.

Queries, keys and values are generated from the text up to and including a token, so decoding token by token, prefilling in
chunks and drafting in a tree must give the same bits. They are also compared with attention written out in float64.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from paceline.cache.paged import PagedCache
from paceline.cache.scaled import narrowed, widened
from paceline.sequence import Sequence
from paceline.step import Feed, Segment, Step, Verdict
from paceline.tree import DraftTree
from stepping import accept, missing, sequence

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from paceline.kernels import tree_attention as attention
from paceline.kernels.attention_tiling import Tiling
from paceline.kernels.step_tables import Extent, StepTables
from paceline.kernels.tree_attention import tree_attention
from paceline.kernels.work_items import Division

# `conftest` selects the interpreter unless TRITON_INTERPRET is set, for runs on a GPU
DEVICE = torch.device("cuda" if os.environ["TRITON_INTERPRET"] == "0" else "cpu")
Text = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A generated layer: sizes, and attention options. `error`: tolerance against float64."""

    heads: int = 2
    kv_heads: int = 1
    dim: int = 16
    value_dim: int = 16
    dtype: torch.dtype = torch.float32
    narrow: torch.dtype | None = None
    window: int = 0
    softcap: float | None = None
    sinks: bool = False
    tiling: Tiling = field(default=Tiling(16, 16, 32, near=16, near_splits=3))
    error: float = 2e-6

    @property
    def scale(self) -> float:
        return self.dim**-0.5

    def sink_logits(self) -> torch.Tensor | None:
        return torch.linspace(-1, 3, self.heads) if self.sinks else None

    def rows(self, texts: Many[Text]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [T, H, D], key [T, K, D] and value [T, K, D'] of every text's last token."""
        found = []
        for text in texts:
            stream = torch.Generator().manual_seed(hash(text) & (2**62 - 1))
            sizes = (self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.value_dim)
            found.append((torch.randn(sum(sizes), generator=stream) * 1.5).to(self.dtype).split(sizes))
        query, key, value = (torch.stack(parts) for parts in zip(*found, strict=True))
        count = len(texts)
        return (
            query.view(count, self.heads, self.dim),
            key.view(count, self.kv_heads, self.dim),
            value.view(count, self.kv_heads, self.value_dim),
        )

    def expected(self, text: Text) -> torch.Tensor:
        """float64 [H, D']: attention of the text's last token, written out."""
        first = max(len(text) - self.window, 0) if self.window else 0
        query, keys, values = self.rows([text[: end + 1] for end in range(len(text))])
        if self.narrow is not None:
            keys, values = (widened(*narrowed(rows, self.narrow), torch.float32) for rows in (keys, values))
        group = self.heads // self.kv_heads
        keys, values = (rows[first:].double().repeat_interleave(group, 1) for rows in (keys, values))
        scores = torch.einsum("hd,nhd->hn", query[-1].double(), keys) * self.scale
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        sinks = self.sink_logits()
        if sinks is not None:
            scores = torch.cat([scores, sinks.double()[:, None]], 1)
        weights = scores.softmax(-1)[:, : len(keys)]
        return torch.einsum("hn,nhd->hd", weights, values)


SHAPES = {
    "grouped": Shape(heads=4, kv_heads=2),
    "odd sizes": Shape(heads=3, dim=24, value_dim=8),
    "capped, narrow window": Shape(softcap=2.0, window=3),
    "sinks, window": Shape(sinks=True, window=21),
    "fp16": Shape(dtype=torch.float16, error=3e-3),
    "bf16": Shape(dtype=torch.bfloat16, error=2e-2),
    "fp8": Shape(dtype=torch.bfloat16, narrow=torch.float8_e4m3fn, error=3e-2),
    "int8": Shape(dtype=torch.float16, narrow=torch.int8, error=3e-3),
}


@pytest.fixture(autouse=True)
def products_of_elements_that_know_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies with BLAS, whose bits depend on an element's place in the matrix; tensor cores' bits do not."""

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> TensorHandle:
        wide = [torch.from_numpy(x.data).float() for x in (a, b)]
        return TensorHandle((wide[0][:, :, None] * wide[1][None]).sum(1).numpy() + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


class Layer:
    """One layer over a paged cache whose pages are filled with garbage."""

    def __init__(self, shape: Shape, pages: int = 120, page_size: int = 4) -> None:
        self.shape, self.cache = shape, PagedCache(pages, page_size, shape.narrow)
        rows = shape.rows([(0,)])
        self.cache.write(0, torch.zeros(1, dtype=torch.int64, device=DEVICE), rows[1].to(DEVICE), rows[2].to(DEVICE))
        stores = self.cache.layer(0).stores
        for store in stores:
            (store.view(torch.uint8) if store.dtype.itemsize == 1 else store).fill_(
                127 if store.dtype.itemsize == 1 else math.nan
            )

    def forward(self, feeds: Many[Feed], extent: Extent | None = None) -> dict[Text, torch.Tensor]:
        """Stage one step and attend; per text the [H, D'] of its row."""
        shape, step = self.shape, Step.of(feeds)
        self.cache.stage(step)
        blocks = [self.cache.blocks(segment.sequence.key) for segment in step.segments]
        division = shape.tiling.division(shape.heads, shape.kv_heads)
        extent = extent or Extent.of(step, blocks, self.cache.page_size, division)
        tables = StepTables(extent, self.cache.page_size, division, DEVICE)
        tables.load(step, blocks)
        texts = [text for segment in step.segments for text in texts_of(segment)]
        padding = [(row,) for row in range(extent.rows - len(texts))]
        query, keys, values = (part.to(DEVICE) for part in shape.rows([*texts, *padding]))
        self.cache.write(0, tables.destinations, keys, values)
        pages, sinks = self.cache.layer(0), shape.sink_logits()
        mixed = tree_attention(
            query, pages.keys, pages.values, tables, scale=shape.scale, tiling=shape.tiling, window=shape.window,
            softcap=shape.softcap, sinks=None if sinks is None else sinks.to(DEVICE), key_scales=pages.key_scales,
            value_scales=pages.value_scales,
        ).cpu()  # fmt: skip
        assert not mixed[len(texts) :].any()
        return dict(zip(texts, mixed, strict=False))

    def prefill(self, owner: Sequence, chunk: int) -> dict[Text, torch.Tensor]:
        """Feed the missing tokens of a sequence in chunks, and attend."""
        found = {}
        while (held := self.cache.length(owner.key)) < len(owner.tokens):
            found |= self.forward([missing(self.cache, owner, upto=held + chunk)])
            self.cache.commit([Verdict()])
        return found

    def hold(self, key: int, tokens: Many[int]) -> Sequence:
        """A sequence with all tokens but the last in the cache, written without attending: results do not depend on that."""
        owner = sequence(key, tokens)
        step = Step.of([missing(self.cache, owner, upto=len(tokens) - 1)])
        self.cache.stage(step)
        _, keys, values = self.shape.rows(list(texts_of(step.segments[0])))
        self.cache.store(0, step.segments[0], keys.transpose(0, 1).to(DEVICE), values.transpose(0, 1).to(DEVICE))
        self.cache.commit([Verdict()])
        return owner


def texts_of(segment: Segment) -> Iterator[Text]:
    """Per row of a segment, the text up to and including its token."""
    tokens, end = segment.sequence.tokens, segment.start + segment.chain
    for slot in range(segment.start, end):
        yield tuple(tokens[: slot + 1])
    tree = segment.tree
    for node in range(1, len(tree) if tree else 0):
        assert tree is not None
        yield (*tokens[:end], *(tree.tokens[step] for step in tree.path(node)))


def draft(owner: Sequence) -> DraftTree:
    """Three levels and eight nodes with siblings on each of them, so that paths branch at several depths."""
    paths = [(1, 2, 3), (1, 4), (5, 6, 7), (1, 2, 8)]
    return DraftTree.of_paths(owner.root, paths, "test", 9)


def same(one: dict[Text, torch.Tensor], other: dict[Text, torch.Tensor]) -> bool:
    """Whether all texts in both have the same bits; there must be at least one."""
    common = one.keys() & other.keys()
    return bool(common) and all(torch.equal(one[text], other[text]) for text in common)


def decoded(shape: Shape, tokens: Many[int], leaves: Many[Text]) -> dict[Text, torch.Tensor]:
    """Every text between `tokens` and the leaves, decoded token by token, each path separately."""
    found: dict[Text, torch.Tensor] = {}
    layer = Layer(shape)
    layer.hold(0, tokens)
    for key, leaf in enumerate(leaves, 1):
        layer.cache.fork(0, key)
        owner = sequence(key, tokens)
        for token in (*leaf[len(tokens) :], 0):
            mixed = layer.forward([missing(layer.cache, owner)])
            assert same(mixed, found) or not mixed.keys() & found.keys()
            found |= mixed
            layer.cache.commit([Verdict()])
            owner.commit((token,), ())
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_a_mixed_step_computes_attention(name: str) -> None:
    """The tail of a prompt, a plain decode and a draft tree in one step, over several splits."""
    shape = SHAPES[name]
    layer = Layer(shape)
    chunk, plain, drafting = layer.hold(0, range(34)), layer.hold(1, range(50, 56)), layer.hold(2, range(70, 141))
    chunk.commit((1, 2, 3), ())
    tree = draft(drafting)
    feeds = [missing(layer.cache, chunk), missing(layer.cache, plain, DraftTree.root(plain.root))]
    found = layer.forward([*feeds, missing(layer.cache, drafting, tree)])
    assert len(found) == 4 + 1 + len(tree)
    for text, mixed in found.items():
        assert (mixed.double() - shape.expected(text)).abs().max() < shape.error, len(text)


@pytest.mark.parametrize("name", SHAPES)
def test_verifying_gives_the_bits_of_decoding(name: str) -> None:
    """A tree across the border of a split; its paths are decoded separately."""
    shape, tokens = SHAPES[name], range(31)
    layer = Layer(shape)
    owner = layer.hold(0, tokens)
    tree = draft(owner)
    verified = layer.forward([missing(layer.cache, owner, tree)])
    leaves = [text for text in verified if not any(other[: len(text)] == text for other in verified.keys() - {text})]
    assert len(leaves) == 4
    plain = decoded(shape, tokens, leaves if name == "grouped" else leaves[-2:])
    assert name != "grouped" or verified.keys() == plain.keys()
    assert same(verified, plain)


@pytest.mark.parametrize("committed", [3, 15, 16, 63])
def test_borders_of_blocks_and_splits_do_not_show(committed: int) -> None:
    shape, tokens = Shape(), range(committed)
    layer = Layer(shape)
    owner = layer.hold(0, tokens)
    verified = layer.forward([missing(layer.cache, owner, draft(owner))])
    assert same(verified, decoded(shape, tokens, [(*tokens, 1, 2, 8)]))


@pytest.mark.parametrize(("committed", "levels"), [(36, 3), (46, 3), (78, 3), (104, 3), (41, 25), (12, 40)])
def test_rows_whose_paths_part_have_programs_of_their_own(committed: int, levels: int) -> None:
    """In a near split, across its end, across the end of a far one, behind a straight block, in three splits, in four."""
    shape, tokens, longest = Shape(heads=4, kv_heads=2, window=0 if levels < 40 else 21), range(committed), range(1, levels + 1)
    owner = (layer := Layer(shape)).hold(0, tokens)
    tree = DraftTree.of_paths(owner.root, [(*longest,), (1, 4), (5, 6, 7), *((9, node) for node in range(10, 16))], "test", 80)
    verified = layer.forward([missing(layer.cache, owner, tree)])
    assert same(verified, decoded(shape, tokens, [(*tokens, *longest), (*tokens, 1, 4)]))


@pytest.mark.parametrize("name", ["grouped", "sinks, window"])
def test_rows_do_not_see_what_rides_beside_them(name: str) -> None:
    shape, prompts = SHAPES[name], [range(20), range(60, 109), range(7)]
    alone = {}
    for key, tokens in enumerate(prompts):
        layer = Layer(shape)
        owner = layer.hold(key, tokens)
        alone |= layer.forward([missing(layer.cache, owner, draft(owner))])
    layer = Layer(shape)
    owners = [layer.hold(key, tokens) for key, tokens in reversed(list(enumerate(prompts)))]
    together = layer.forward([missing(layer.cache, owner, draft(owner)) for owner in owners])
    assert alone.keys() == together.keys()
    assert same(alone, together)


@dataclass(frozen=True)
class Overflowing(Shape):
    """The values of some texts are infinite."""

    endless: frozenset[Text] = frozenset()

    def rows(self, texts: Many[Text]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, keys, values = super().rows(texts)
        values[[text in self.endless for text in texts]] = math.inf
        return query, keys, values


def test_a_node_that_overflows_harms_those_alone_that_see_it() -> None:
    tokens = tuple(range(31))
    sick = (*tokens, 1, 2)
    found = []
    for shape in (Shape(window=4), Overflowing(window=4, endless=frozenset([tokens[:1], sick]))):
        layer = Layer(shape)
        owner = layer.hold(0, tokens)
        found.append(layer.forward([missing(layer.cache, owner, draft(owner))]))
    clean, harmed = found
    for text, mixed in harmed.items():
        assert torch.equal(mixed, clean[text]) == (text[: len(sick)] != sick)


def test_chunks_of_a_prompt_have_the_bits_of_decoding() -> None:
    shape, owner = Shape(), sequence(0, range(40))
    whole = Layer(shape).prefill(owner, 40)
    assert len(whole) == 40
    assert same(whole, Layer(shape).prefill(owner, 7))
    late = Layer(shape)
    late.hold(0, range(26))
    assert same(whole, late.prefill(owner, 1))


def test_a_tree_behind_a_chunk_has_the_bits_of_a_tree_behind_a_root() -> None:
    shape, tokens = Shape(), range(40)
    one, other = Layer(shape), Layer(shape)
    one.hold(0, tokens[:30])
    owner = other.hold(0, tokens)
    at_once = one.forward([missing(one.cache, owner, draft(owner))])
    assert same(at_once, other.forward([missing(other.cache, owner, draft(owner))]))


def test_keys_of_accepted_nodes_are_read_from_the_slots_they_were_moved_to() -> None:
    layer, fresh = Layer(Shape()), Layer(Shape())
    owner = layer.hold(0, range(30))
    tree = draft(owner)
    layer.forward([missing(layer.cache, owner, tree)])
    verdict = accept(tree, tree.path(len(tree) - 1), 42)
    layer.cache.commit([verdict])
    owner.commit(verdict.tokens, ())
    after = layer.forward([missing(layer.cache, owner, draft(owner))])
    fresh.hold(0, owner.tokens)
    assert same(after, fresh.forward([missing(fresh.cache, owner, draft(owner))]))


@pytest.mark.parametrize("name", SHAPES)
def test_how_many_splits_a_program_walks_shows_in_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text, a short one and a draft: one program per split, one for the near splits, one for one more, one for all."""
    shape, found = SHAPES[name], []
    splits = shape.tiling.division(shape.heads, shape.kv_heads).split_of(32 * 4 - 1) + 1
    assert splits > shape.tiling.near_splits > 1
    for walked in (1, shape.tiling.near_splits, shape.tiling.near_splits + 1, splits):
        monkeypatch.setattr(Division, "walked", lambda *_, walked=walked: (walked, splits - walked + 1))
        layer = Layer(shape)
        owners = [layer.hold(key, tokens) for key, tokens in enumerate((range(70, 141), range(20), range(50, 96)))]
        found.append(layer.forward([missing(layer.cache, owner, draft(owner)) for owner in owners], Extent(64, 64, 4, 32, 8)))
    assert all(same(found[0], other) for other in found[1:])


def test_key_heads_that_take_turns_have_the_bits_of_those_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, found, rooms = Shape(heads=6, kv_heads=3, sinks=True), [], []
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *of, **how: rooms.append(of[1:]) or empty(*of, **how))
    for at_once in (3, 1, 2):
        monkeypatch.setattr(attention, "_at_once", lambda *_, at_once=at_once: at_once)
        layer = Layer(shape)
        owners = [layer.hold(key, tokens) for key, tokens in enumerate((range(40), range(9)))]
        rooms.clear()
        drafts = [draft(owners[0]), DraftTree.root(owners[1].root)]
        found.append(layer.forward([missing(layer.cache, *pair) for pair in zip(owners, drafts, strict=True)]))
        assert {room[1] for room in rooms if len(room) == 4} == {2 * at_once}
    assert all(same(found[0], other) for other in found[1:])


def test_key_heads_take_turns_to_bound_what_is_left_to_merge() -> None:
    """Llama's heads behind 131,072 tokens: steps of few and of many decoding rows, and a prompt chunk beside another sequence."""
    assert [attention._at_once(rows, 32, 8, 268, 128) for rows in (16, 32, 64, 512)] == [8, 8, 4, 1]
    assert attention._at_once(512, 32, 8, 1, 128) == 8, "nothing is left to merge if one program walks all splits"
    assert attention._at_once(64, 32, 32, 268, 128) == 16
    assert attention._at_once(64, 48, 6, 268, 128) == 3, "two turns of three, not one of four and one of two"


def test_a_long_tail_of_small_weights_is_no_less_than_it_is() -> None:
    """Each weight is 2^-26 of the largest, too small to add to it in 24 bits; together they are 2^-15."""
    shape, cache, owner = Shape(), PagedCache(520, 4, None), sequence(0, range(2000))
    cache.stage(step := Step.of([missing(cache, owner)]))
    keys, values = torch.zeros(2000, 1, 16), torch.ones(2000, 1, 16)
    keys[0, 0, 0], values[0] = 4.0, 0.0
    cache.write(0, torch.zeros(1, dtype=torch.int64, device=DEVICE), keys[:1].to(DEVICE), values[:1].to(DEVICE))
    tables = StepTables.of(step, cache.blocks_of(step), 4, shape.tiling.division(2, 1), DEVICE)
    cache.write(0, tables.destinations, keys.to(DEVICE), values.to(DEVICE))
    query = torch.zeros(2000, 2, 16, device=DEVICE)
    query[:, :, 0] = 26 * math.log(2) / 4.0
    pages = cache.layer(0)
    found = tree_attention(query, pages.keys, pages.values, tables, scale=1.0, tiling=shape.tiling)[-1].cpu()
    tail = 1999 * 2.0**-26
    assert found[0, 0].item() == pytest.approx(tail / (1 + tail), rel=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_how_tall_a_tile_is_shows_in_no_bit(name: str) -> None:
    low, found = SHAPES[name], []
    for shape in (low, replace(low, tiling=low.tiling.tall)):
        layer = Layer(shape)
        owners = [layer.hold(key, tokens) for key, tokens in enumerate((range(70, 141), range(20)))]
        chunk = layer.hold(2, range(34))
        chunk.commit(tuple(range(1, 20)), ())
        feeds = [*(missing(layer.cache, owner, draft(owner)) for owner in owners), missing(layer.cache, chunk)]
        found.append(layer.forward(feeds))
    assert same(*found)


def test_padding_to_a_bucket_changes_nothing() -> None:
    layer = Layer(Shape())
    owner = layer.hold(0, range(37))
    feeds = [missing(layer.cache, owner, draft(owner))]
    exact = layer.forward(feeds)
    assert same(exact, layer.forward(feeds, Extent(16, 16, 4, 32, 8)))


def test_tilings_and_queries_that_do_not_fit_the_step_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit a tile"):
        Tiling(16, 16, 32).division(34, 2)
    layer, owner = Layer(Shape()), sequence(0, range(3))
    step = Step.of([missing(layer.cache, owner)])
    layer.cache.stage(step)
    tables = StepTables.of(step, [layer.cache.blocks(0)], 4, Tiling(16, 16, 32).division(2, 1), DEVICE)
    pages, query = layer.cache.layer(0), torch.zeros(3, 2, 16, device=DEVICE)
    for other in (query[:2], query[..., :8]):
        with pytest.raises(ValueError, match="same step"):
            tree_attention(other, pages.keys, pages.values, tables, scale=1.0, tiling=Tiling(16, 16, 32))
    with pytest.raises(ValueError, match="tiling"):
        tree_attention(query, pages.keys, pages.values, tables, scale=1.0, tiling=Tiling(32, 16, 32))
    with pytest.raises(ValueError, match="together or not at all"):
        tree_attention(query, pages.keys, pages.values, tables, scale=1.0, tiling=Tiling(16, 16, 32), key_scales=query)
