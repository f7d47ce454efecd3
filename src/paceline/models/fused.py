"""FusedModel: a Llama-form model on a GPU over pages, with nine launches of our own kernels per layer.

The fused backend. Every kernel computes a row from that row alone, in a fixed order, whatever rows are beside it: verification,
decoding and prefill in any chunking give the same bits. The residual stream and all sums are float32; the inputs of matrix
products, and keys and values, have the precision of the weights.

The launches of a layer:

    residual_norms   add the previous block's output to the residual stream, and normalise it
    row_products     times the query, key and value matrix, in parts of the inputs
    rotary           add up the parts, and rotate heads to their positions; keys and values go into their pages
    tree_attention   every row against its keys, in splits of the positions that it sees (`work_items`)
    tree_attention   merge the splits of a row; with many tiles, the first launch does that too
    row_products     times the output matrix
    residual_norms   as above
    row_products     gate and up matrices, activation and their product in one launch
    row_products     times the down matrix

Narrow keys and values are rounded and written by torch after `rotary`.

Source: the form is that of Llama (arXiv:2302.13971) and the families after it; see `forms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence as Many
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger

import torch

from paceline.budget import Budget
from paceline.cache.paged import PagedCache
from paceline.growth import Growth
from paceline.kernels.attention_tiling import Tiling
from paceline.kernels.chain_tables import ChainTables
from paceline.kernels.residual_norms import joined
from paceline.kernels.rotary import Heads, turned
from paceline.kernels.row_products import gated_product, row_product
from paceline.kernels.step_tables import SMALLEST, Extent, RowTables, rounded
from paceline.kernels.tree_attention import tree_attention
from paceline.kernels.work_items import Division
from paceline.models.base import DTYPES, ROUGH, ModelError, Scores
from paceline.models.checkpoint import Checkpoint
from paceline.models.device_weights import BEYOND, DeviceWeights, Layer
from paceline.models.forms import Unsuited, form_of
from paceline.models.fused_drafts import ChainDraft, drafted, is_fused
from paceline.models.paged import PAGE, RECORDED_ROWS, OverPages
from paceline.models.quiet import sentence
from paceline.models.recording import RecordingInParts
from paceline.models.rotation import Rotation
from paceline.models.taps import check_tap
from paceline.models.tensors import Tensors
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.shortage import memory_ended
from paceline.step import Feed, Step
from paceline.tree import DraftTree

_MOST_PAGES = 1024
"""Most initial pages of a cache: the tokens that an engine keeps for shared prefixes by default."""
_LEVELS = 8
"""Fewest levels of a chain's tables."""


@dataclass(frozen=True)
class _Staged:
    """One forward pass in flight: the cache that stores its rows' keys and values, the tables by which each row finds its keys,
    and the tiling of attention."""

    cache: PagedCache
    tables: RowTables
    tiling: Tiling


class FusedModel(OverPages):
    """A row's logits have the same bits in every step that contains it."""

    # a tensor core multiplies sixteen rows at once, however few there are; lookups draft 32 deep on a GPU
    smallest = SMALLEST._replace(rows=16, depth=32)
    batch_invariant = True
    never_waits = True
    drafts_whole = True

    def __init__(
        self,
        weights: DeviceWeights,
        name: str,
        context_length: int,
        eos_token_ids: frozenset[int] = frozenset(),
        kv_cache: str | None = None,
    ) -> None:
        form = weights.form
        super().__init__(weights.embedding.device)
        self.name, self.weights, self.weights_bytes = name, weights.format, weights.held_bytes
        self.context_length, self.vocab_size, self.kv_cache = context_length, form.vocabulary, kv_cache
        self.layers = len(form.layers)
        self.eos_token_ids = frozenset(token for token in eos_token_ids if token < form.vocabulary)
        self._held = weights
        self._heads = Heads(form.heads, form.key_heads, form.head_size, form.rotary)
        self._tiling = Tiling.of(form.heads, form.key_heads, form.head_size, weights.dtype.itemsize)
        self._has_tall_tiles = weights.dtype.itemsize == 2 and form.head_size <= 128 and _multiplies_alike(self._device)
        # keys and values of one row, from which a cache takes their shape and dtype
        self._sample = torch.empty(1, form.key_heads, form.head_size, dtype=weights.dtype, device=self._device)

    @property
    def division(self) -> Division:
        return self._divided(self._tiling)

    def _divided(self, tiling: Tiling) -> Division:
        return tiling.division(self._heads.queries, self._heads.keys)

    @property
    def first_pages(self) -> int:
        """Pages for an eighth of the free memory, but at most `_MOST_PAGES`."""
        form = self._held.form
        head = form.head_size * self._held.dtype.itemsize if self.kv_cache is None else form.head_size + 4
        page = PAGE * len(form.layers) * 2 * form.key_heads * head
        free = torch.cuda.mem_get_info(self._device)[0] if self._device.type == "cuda" else 0
        return max(min(free // (8 * page), _MOST_PAGES), super().first_pages)

    def _over(self, cache: PagedCache, tables: Callable[[Division], RowTables]) -> _Staged:
        return _Staged(cache, tables(self.division), self._tiling)

    def _forward(self, step: Step, cache: PagedCache) -> _Staged:
        if not self._suits_tall_tiles(step):
            return super()._forward(step, cache)
        tall = self._tiling.tall
        return _Staged(cache, self._tables_of(step, cache)(self._divided(tall)), tall)

    def _suits_tall_tiles(self, step: Step) -> bool:
        """Whether a step is not recorded and most of its rows belong to prompts. In a draft that forks, the rows of a tile take
        turns, each computing the whole tile, so that taller tiles cost more."""
        if not self._has_tall_tiles or len(step.tokens) <= RECORDED_ROWS:
            return False
        tile = self.division.rows_per_tile
        prompts = sum([one.chain for one in step.segments if one.chain >= tile])
        return 2 * prompts >= len(step.tokens)

    def score(self, step: Step, cache: PagedCache, taps: Iterable[int] = ()) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        tapped = tuple(taps)
        for layer in tapped:
            check_tap(layer, len(self._held.layers))
        self._check(step)
        return super().score(step, cache, tapped)

    def _check(self, step: Step) -> None:
        """Raises ValueError for a token or position out of range: an out-of-bounds read makes the device unusable for the whole
        process."""
        last = max([one.start + one.chain - 1 + (max(one.tree.depth) if one.tree else 0) for one in step.segments])
        if last >= self.context_length + BEYOND:
            raise ValueError(f"a step reaches past the context of {self.context_length} tokens")
        if not 0 <= min(step.tokens) <= max(step.tokens) < self.vocab_size:
            raise ValueError(f"a step holds a token outside of the vocabulary of {self.vocab_size}")

    def extend(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        sequences: Many[Sequence],
        budgets: Many[Budget],
        cache: PagedCache,
        *,
        growth: Growth,
        vocab_size: int,
        source: str,
    ) -> list[DraftTree]:
        """As `LanguageModel.extend`; chains (`is_fused`) are drafted without waiting for the device between levels."""
        work = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            depth = min(budget.levels, growth.chain or 0, self.room(sequence, cache))
            if depth > 0:
                work.append((sequence, budget, depth))
        trees = None
        if work and self._recordable and all(is_fused(sequence, growth) for sequence, *_ in work):
            self._catch_up([sequence for sequence, *_ in work], cache, _PROMPT)
            trees = self._drafted(work, cache, min(vocab_size, self.vocab_size), source)
        if trees is None:
            options = {"growth": growth, "vocab_size": vocab_size, "source": source}
            return super().extend(sequences, budgets, cache, **options)
        found = {sequence.key: tree for (sequence, *_), tree in zip(work, trees, strict=True)}
        return [found.get(sequence.key) or DraftTree.root(sequence.root) for sequence in sequences]

    def _drafted(
        self, work: Many[tuple[Sequence, Budget, int]], cache: PagedCache, vocab_size: int, source: str
    ) -> list[DraftTree] | None:
        """A chain for each sequence; None if the caches lack too many tokens for a recording, or nothing can be recorded."""
        draft = ChainDraft(work, cache)
        cache.stage(draft.step)
        # one bucket for a single sequence, one for several: a tile has room for a few, so each count need not be recorded apart
        least = self.smallest._replace(depth=1) if len(work) > 1 else self.smallest._replace(items=8, sequences=1, depth=1)
        extent = draft.extent(cache, self.division, least)
        self._check(draft.step)
        if extent.rows > RECORDED_ROWS:
            return None
        found = self._or_none(lambda: self._chains(draft, cache, extent, vocab_size))
        if found is None:
            return None
        trees = draft.trees(found, source)
        cache.commit(draft.verdicts(trees))
        return trees

    @torch.inference_mode()
    def _chains(self, draft: ChainDraft, cache: PagedCache, extent: Extent, vocab_size: int) -> torch.Tensor:
        """The tokens of a staged draft and their probabilities, on the host; may have more levels than the draft."""
        # a draft's depth varies from step to step, and each level is recorded separately
        room = rounded(draft.levels, _LEVELS)
        at_least = partial(draft.extent, cache, self.division)
        _, extent, _ = place = self._place(cache, ("chains", extent, (room, vocab_size)), at_least)

        def made(pages: Callable[[], PagedCache]) -> RecordingInParts[ChainTables, torch.Tensor]:
            buffer = torch.zeros(2, room, extent.sequences, dtype=torch.int32, device=self._device)

            def forward(tables: RowTables, keep: torch.Tensor | None) -> torch.Tensor:
                staged = self._over(pages(), lambda _: tables)
                return self.run(tables.token_ids[None], tables.positions[None], staged, (), keep)[0]

            def run(tables: ChainTables, level: int) -> torch.Tensor:
                return drafted(forward, tables, level, vocab_size, buffer)

            tables = ChainTables(extent, room, cache.page_size, self.division, self._device)
            return RecordingInParts(tables, run, self._device, self._pool, self.never_waits)

        recording = self._recording(cache, place, made)
        recording.tables.load(draft.step, cache.blocks_of(draft.step))
        return recording(draft.levels).cpu()

    def run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        forward: _Staged,
        taps: tuple[int, ...] = (),
        keep: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        held, dtype = self._held, self._held.dtype
        residual = held.embedding[token_ids[0]].float() * held.embedding_scale
        captured: dict[int, torch.Tensor] = {}
        parts = bias = behind = None
        last = len(held.layers) - 1
        # a tap after the last layer needs all rows
        alone = None if last + 1 in taps else keep
        for index, layer in enumerate(held.layers):
            rows = joined(residual, layer.before_attention, dtype, parts, bias, behind)
            if index in taps:
                captured[index] = (residual * held.form.residual_scale)[None]
            attended = self._attended(index, layer, rows, forward)
            if alone is not None and index == last:
                # after the last layer's keys and values, the other rows are not needed
                attended, residual = attended[alone], residual[alone]
            parts = row_product(attended, layer.out.weight, layer.out.parts)
            rows = joined(residual, layer.before_mlp, dtype, parts, layer.out.bias, layer.after_attention)
            rows = gated_product(rows, layer.gate_up.weight, held.form.activation, layer.gate_up.bias)
            parts = row_product(rows, layer.down.weight, layer.down.parts)
            bias, behind = layer.down.bias, layer.after_mlp
        rows = joined(residual, held.last_norm, dtype, parts, bias, behind)
        if last + 1 in taps:
            captured[last + 1] = (residual * held.form.residual_scale)[None]
        if keep is not None and alone is None:
            rows = rows[keep]
        (logits,) = row_product(rows, held.head.weight, held.head.parts)
        if held.head.bias is not None:
            logits += held.head.bias
        if cap := held.form.logit_cap:
            logits = cap * torch.tanh(logits / cap)
        return logits, captured

    def _attended(self, index: int, layer: Layer, rows: torch.Tensor, forward: _Staged) -> torch.Tensor:
        """Attention of one layer for rows [T, hidden], before the output matrix: [T, H D]."""
        cache, tables, form = forward.cache, forward.tables, self._held.form
        kind = form.layers[index]
        pages = cache.reserve(index, self._sample, self._sample)
        parts = row_product(rows, layer.query_key_value.weight, layer.query_key_value.parts)
        common = parts, self._heads, self._held.rotations[kind.rotary], tables.positions
        last = layer.query_key_value.bias, layer.heads, self._held.growth
        if pages.key_scales is None:
            queries = turned(*common, tables.destinations, pages.keys, pages.values, *last)
        else:
            keys, values = rows.new_empty(2, len(rows), form.key_heads, form.head_size)
            places = torch.arange(len(rows), dtype=torch.int32, device=self._device)
            queries = turned(*common, places, keys, values, *last)
            cache.write(index, tables.destinations.long(), keys, values)
        attended = tree_attention(
            queries,
            pages.keys,
            pages.values,
            tables,
            scale=form.score_scale,
            tiling=forward.tiling,
            window=kind.window,
            softcap=form.score_cap or None,
            key_scales=pages.key_scales,
            value_scales=pages.value_scales,
        )
        return attended.flatten(1)


def _multiplies_alike(device: torch.device) -> bool:
    """Whether tall tiles give the same bits as low ones, as measured on Hopper. Later devices multiply them with other units."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) < (10, 0)


_PROMPT = 64
"""More rows than this are fed as prompts: recording each size of them would cost more than it saves."""
_SIZES = (3, 17, 33, 65, 129, 257, 513)
"""Row counts, one per tile size, for which kernels are compiled at load, so that none is compiled in the middle of an answer."""
_LOW, _TALL = 65, 257
"""Row counts at which attention uses low and tall tiles."""


def _tries(tiling: Tiling) -> list[tuple[Tiling, int]]:
    """Tilings and row counts that compile all kernels: attention that walks its splits and that does not, for any heads."""
    either = [(replace(tiling, few=few), rows) for few in (0, 1 << 30) for rows in (_LOW, _TALL)]
    return [*((tiling, rows) for rows in _SIZES), *either]


def _scored(model: FusedModel, tokens: int, every: bool = False) -> torch.Tensor:
    """The logits after a text of so many tokens, or after each of them, in one forward pass, even beyond `prefill_chunk`."""
    text, cache = (
        Sequence(0, tuple(token % model.vocab_size for token in range(tokens)), SamplingParams(), seed=0),
        model.new_cache(),
    )
    step = Step.of([Feed(text, 0, text.prompt, DraftTree.root(text.root), prompt_logits=every)])
    cache.stage(step)
    return model.score(step, cache).logits


def _tried(model: FusedModel, rows: int, tiling: Tiling | None = None) -> torch.Tensor:
    """The logits after a text of so many tokens. tiling: the model's own, if None."""
    own = model._tiling
    model._tiling = tiling or own
    try:
        return _scored(model, rows)
    finally:
        model._tiling = own


def _off(narrow: FusedModel, wide: FusedModel) -> float:
    """The error of a text's logits due to narrow keys and values, relative to their spread: the median over its tokens."""
    rough, exact = (_scored(model, min(_COMPARED, model.context_length), every=True) for model in (narrow, wide))
    errors = (rough - exact).square().mean(-1).sqrt() / exact.std().clamp(min=1e-6)
    return float(errors.median())


_COMPARED = 48


def fused_model(
    checkpoint: Checkpoint,
    config: object,
    context_length: int,
    device: torch.device,
    weights: str | None = None,
    kv_cache: str | None = None,
) -> FusedModel:
    """The model of a checkpoint on this backend. config: transformers' own. Raises Unsuited if this backend cannot run it but
    transformers may, and ModelError if none can.
    """
    if weights not in (None, *DTYPES):
        raise Unsuited("packed weights are for processors only")
    try:
        form = form_of(config)
        held = DeviceWeights(form, Tensors(checkpoint), Rotation(config, form.rotary), weights, context_length, device)
        model = FusedModel(held, checkpoint.name, context_length, checkpoint.eos_token_ids, kv_cache)
        for tiling, rows in _tries(model._tiling) if device.type == "cuda" else [(model._tiling, 3)]:
            if not bool(_tried(model, min(rows, context_length), tiling).isfinite().all()):
                raise ModelError(f"the weights of '{checkpoint.path}' give logits that are not finite numbers")
        if kv_cache is not None:
            off = _off(model, FusedModel(held, model.name, context_length))
            if not off <= ROUGH:
                reason = f"its logits are off by {off:.1e} of their spread"
                raise ModelError(f"'{model.name}' cannot keep its keys and values as {kv_cache} here: {reason}")
    except (Unsuited, ModelError):
        raise
    # an untrusted checkpoint may hold anything, and Triton's compiler has no error class of its own
    except Exception as error:
        if memory_ended(error):
            # transformers' backend needs no less
            raise ModelError(f"the device has too little memory for '{checkpoint.name}'") from error
        getLogger("paceline").warning("'%s' does not run on the fused kernels: %s", checkpoint.name, sentence(error))
        raise Unsuited(f"it fails with '{sentence(error)}'") from error
    return model
