"""NativeModel: a Llama-form model run from packed weights, one compiled call per step.

The native backend, with the same contract as the others. A row's logits have the same bits whatever is computed beside it and on
any number of threads, so verification equals decoding in every format, int4 included. Activations are float32, but in products
they become integers with integer weights, bfloat16 under `w16a16`, and a pair of bfloat16 each under `bf16` if a matrix unit
multiplies them; keys and values are float32 where weights are, else float16. The weight format applies to linear layers and the
head. Norms and biases are always float32, and in integer formats embeddings keep the checkpoint's precision.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence as Many
from contextlib import contextmanager
from dataclasses import replace
from logging import getLogger
from typing import Any

import numpy as np
import torch

from paceline.budget import Budget
from paceline.cache.base import Branching
from paceline.cache.panels import PanelCache, PanelSlab, Shape
from paceline.growth import Growth
from paceline.kernels.compilers import CompileError
from paceline.kernels.native import layout
from paceline.kernels.native.entries import DRAFT, STEP, product
from paceline.kernels.native.threads import CONTENTION, granted, spread
from paceline.kernels.native.vectors import FUSES, PANEL
from paceline.models.base import LanguageModel, ModelError, Scores
from paceline.models.checkpoint import Checkpoint
from paceline.models.forms import Unsuited, form_of
from paceline.models.native_arrays import Record, Scratch, StepArrays
from paceline.models.native_drafts import Drafts, is_compiled
from paceline.models.packing import Weights
from paceline.models.quiet import sentence
from paceline.models.rotation import Rotation
from paceline.models.taps import check_tap
from paceline.models.tensors import Tensors
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.shortage import memory_ended
from paceline.step import Feed, Step, Verdict
from paceline.torch_threads import usable
from paceline.tree import DraftTree


class NativeModel(LanguageModel):
    """Not to be called from two threads at once: the arrays of a step belong to the model."""

    # twice as many do not fit in the L2 cache: prompts are read no faster, with int8 slower, and scratch is larger
    prefill_chunk = 256
    batch_invariant = True
    threads_of_its_own = True

    def __init__(self, weights: Weights, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        form = weights.form
        self.name, self.weights, self.context_length = name, weights.format, context_length
        self.weights_bytes = weights.held_bytes
        self.vocab_size, self.layers = form.vocabulary, len(form.layers)
        self.eos_token_ids = frozenset(token for token in eos_token_ids if token < form.vocabulary)
        self.branching = Branching.TREE
        self.packed = weights
        self._shape = Shape(len(form.layers), form.key_heads, form.head_size, PANEL, _DTYPES[weights.kv_format])
        self._scratch = Scratch(weights)
        self._step, self._draft = STEP.address, DRAFT.address
        self._read_bytes = weights.read_bytes
        calls = np.zeros(1, layout.CALL)
        self._call, self._call_at, self._words = calls[0], calls.ctypes.data, layout.words(calls)
        self._arrays = StepArrays(calls)
        self._unseen = torch.empty(0, weights.head_width)
        self._unpadded = weights.head_width == self.vocab_size
        self._drafts = Drafts(self._call_at, self._step, self.vocab_size)
        self._call["product"] = product(weights.kv_format).address
        for field in ("model", "layers", "norms", "matrices", "experts"):
            self._call[field] = getattr(weights, field).ctypes.data

    def new_cache(self) -> PanelCache:
        return PanelCache(self._shape)

    def score(self, step: Step, cache: PanelCache, taps: Iterable[int] = ()) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        layers, tapped = len(self.packed.form.layers), tuple(taps)
        for layer in tapped:
            check_tap(layer, layers)
        if not 0 <= min(step.tokens) <= max(step.tokens) < self.vocab_size:
            raise ValueError(f"a step holds a token outside of the vocabulary of {self.vocab_size}")
        wanted = step.wanted_rows
        self._arrays.fill(
            step.tokens,
            step.row_positions,
            [parent for segment in step.segments for parent in segment.row_parents],
            wanted,
            # a draft that does not branch occupies slots in order, like committed tokens
            _records(
                [(s.low, s.rows, s.start, s.rows if s.is_chain else s.chain, cache.slab(s.sequence.key)) for s in step.segments]
            ),
        )
        logits = torch.empty(len(wanted), self.packed.head_width)
        threads = self._threads(len(step.tokens))
        self._prepare(threads, len(step.tokens), max([segment.end for segment in step.segments]), logits)
        captured = {layer: torch.empty(len(wanted), self.packed.form.hidden) for layer in tapped}
        if captured:
            places = np.zeros(layers + 1, np.int64)
            places[list(captured)] = [hidden.data_ptr() for hidden in captured.values()]
            self._call["taps"] = places.ctypes.data
        try:
            spread(self._step, threads, self._call_at)
        finally:
            if captured:
                self._call["taps"] = 0
        return Scores(logits if self._unpadded else logits[:, : self.vocab_size], captured)

    def extend(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        sequences: Many[Sequence],
        budgets: Many[Budget],
        cache: PanelCache,
        *,
        growth: Growth,
        vocab_size: int,
        source: str,
    ) -> list[DraftTree]:
        """As `LanguageModel.extend`; all levels are drafted in one call, except with grammars and with drafts that record the
        model's own distributions (`Growth.amateur`)."""
        options: dict[str, Any] = {"growth": growth, "vocab_size": vocab_size, "source": source}
        if growth.amateur:
            return super().extend(sequences, budgets, cache, **options)
        levels = self.context_length if growth.chain is None else growth.chain
        live: list[tuple[Sequence, Budget]] = []
        apart: list[tuple[Sequence, Budget]] = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            if not is_compiled(sequence.params, growth.kind):
                apart.append((sequence, budget))
                continue
            depth = min(budget.levels, levels, self.room(sequence, cache))
            if depth > 0:
                live.append((sequence, budget if depth == budget.depth else replace(budget, depth=depth)))
        trees = self._drafted(live, cache, growth, vocab_size, source) if live else []
        if len(trees) == len(sequences):
            return trees
        found = dict(zip((sequence.key for sequence, _ in live), trees, strict=True))
        if apart:
            others, granted = map(list, zip(*apart, strict=True))
            found.update(zip((one.key for one in others), super().extend(others, granted, cache, **options), strict=True))
        return [found.get(sequence.key) or DraftTree.root(sequence.root) for sequence in sequences]

    def _drafted(
        self, live: list[tuple[Sequence, Budget]], cache: PanelCache, growth: Growth, vocab_size: int, source: str
    ) -> list[DraftTree]:
        """A tree for each sequence, after feeding the tokens missing from its cache; the path of first children stays cached."""
        drafts = self._drafts
        drafts.plan(live, growth)
        self._arrays.reserve(drafts.most_rows)
        count, longest, slabs = self._caught_up([sequence for sequence, _ in live], drafts.most_fed, cache)
        # a node's ancestors, fed in earlier steps, need as much room as if they were rows of its own step
        rows = max(count, drafts.most_rows, drafts.most_fed)
        threads = self._threads(rows)
        drafts.reserve(threads)
        drafts.lay([slab.place for slab in slabs], source, vocab_size, self.packed.head_width)
        if len(self._unseen) < drafts.most_rows:
            self._unseen = torch.empty(drafts.most_rows, self.packed.head_width)
        self._prepare(threads, rows, longest, self._unseen)
        spread(self._draft, threads, drafts.address)
        trees = []
        for (sequence, _), slab, (tree, fed) in zip(live, slabs, drafts.trees(), strict=True):
            end = len(sequence.tokens)
            if fed != list(range(len(fed))):
                slab.move([end + spot for spot in fed], end)
            cache.advance(sequence.key, end + len(fed))
            trees.append(tree)
        return trees

    def _caught_up(self, sequences: list[Sequence], room: int, cache: PanelCache) -> tuple[int, int, list[PanelSlab]]:
        """Lay out the tokens missing from the caches, reserving `room` more slots each. Returns the number of rows, the slots of
        the longest sequence, and the slabs."""
        self._catch_up(sequences, cache)
        tokens, positions, parents, wanted, segments, longest = [], [], [], [], [], 0
        for sequence in sequences:
            start, end = cache.length(sequence.key), len(sequence.tokens)
            segments.append((len(tokens), end - start, start, end - start, cache.reserve(sequence.key, end + room)))
            tokens += sequence.tokens[start:]
            positions += range(start, end)
            parents += range(-1, end - start - 1)
            wanted.append(len(tokens) - 1)
            longest = max(longest, end + room)
        self._arrays.fill(tokens, positions, parents, wanted, _records(segments))
        return len(tokens), longest, [slab for *_, slab in segments]

    def _threads(self, rows: int) -> int:
        """How many threads a forward pass is worth: a barrier costs some microseconds, and far more on a busy machine."""
        worth = self._read_bytes * max(rows // _ROWS_PER_READ, 1) // _BYTES_PER_THREAD
        most = usable()
        if worth <= 1:
            return 1
        # all usable threads or a power of two: each number of threads has its own pool
        return granted(CONTENTION.allowed(max(most if worth >= most else 1 << worth.bit_length() - 1, 1)))

    def _prepare(self, threads: int, rows: int, longest: int, logits: torch.Tensor) -> None:
        """Make room for a step that is laid out. threads: how many it will run on. longest: slots of its longest sequence."""
        self.packed.rotate_up_to(longest)
        self._scratch.reserve(self._call, threads, rows, longest)
        self._words[_THREADS], self._words[_LOGITS] = threads, logits.data_ptr()


_THREADS, _LOGITS = (layout.word_of(layout.CALL, name) for name in ("threads", "logits"))
_BYTES_PER_THREAD = 1 << 22
_ROWS_PER_READ = 8
"""From about this many rows on, vector arithmetic takes longer than reading the weights."""


def _records(segments: Iterable[tuple[int, int, int, int, PanelSlab]]) -> list[Record]:
    return [(low, rows, start, chain, *slab.place, 0, low) for low, rows, start, chain, slab in segments]


def runs_here() -> bool:
    """Whether this machine can run compiled kernels."""
    return FUSES and sys.platform != "win32"


def native_model(checkpoint: Checkpoint, config: Any, context_length: int, weights: str | None = None) -> NativeModel:
    """The model of a checkpoint on this backend. config: transformers' own. Raises Unsuited if this backend cannot run it but
    transformers may, and ModelError if none can.
    """
    if not runs_here():
        raise Unsuited("compiled kernels need a processor with fused multiply-add, and POSIX threads")
    with _whatever_fails_unsuited(checkpoint):
        form = form_of(config)
        packed = Weights(form, Tensors(checkpoint), Rotation(config, form.rotary), weights)
        model = NativeModel(packed, checkpoint.name, context_length, checkpoint.eos_token_ids)
        together, alone = _tried(model)
        if not bool(together.isfinite().all()):
            raise ModelError(f"the weights of '{checkpoint.path}' give logits that are not finite numbers")
        if not torch.equal(together, alone):
            getLogger("paceline").warning("'%s': rows have other bits together than alone on this processor", checkpoint.name)
            raise Unsuited("its rows have other bits together than alone, on this processor")
    return model


def _tried(model: NativeModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits after a short text and down a branch of a tree, all in one forward pass, and each row in a forward pass of its own:
    a miscompiled tile would make them differ."""
    # tokens in use in every vocabulary: the weights of unused tokens may be anything
    text = tuple(token % model.vocab_size for token in (0, 1, 2))
    root, *others = (token % model.vocab_size for token in (2, 0, 1, 2, 0))
    tree, path = DraftTree((root, *others), (-1, 0, 0, 1, 2)), (0, 2, 4)
    together = _scored(model, model.new_cache(), text, tree)[list(path)]
    cache, alone = model.new_cache(), torch.empty_like(together)
    for at, token in enumerate((*text, *(tree.tokens[node] for node in path[1:]))):
        # rows before the root are not compared
        alone[max(at - len(text) + 1, 0)] = _scored(model, cache, (token,), DraftTree.root(token), at)[0]
    return together, alone


def _scored(model: NativeModel, cache: PanelCache, tokens: tuple[int, ...], tree: DraftTree, start: int = 0) -> torch.Tensor:
    """Logits at the nodes of a tree, whose root is the last of `tokens`; `tokens` are fed and committed."""
    text = Sequence(0, (0,) * start + tokens, SamplingParams(), seed=0)
    step = Step.of([Feed(text, start, tokens, tree)])
    cache.stage(step)
    logits = model.score(step, cache).logits
    cache.commit([Verdict()])
    return logits


@contextmanager
def _whatever_fails_unsuited(checkpoint: Checkpoint) -> Iterator[None]:
    """An untrusted checkpoint may hold anything: if it makes something fail, transformers' backend reports what is wrong."""
    try:
        yield
    except (ModelError, Unsuited, CompileError):
        # a kernel that cannot be compiled is not the checkpoint's fault, and no reason to serve a different target
        raise
    except Exception as error:
        if memory_ended(error) or isinstance(error, OSError):
            # no reason for another backend either, which needs at least as much memory
            raise ModelError(f"'{checkpoint.path}' cannot be held here: {sentence(error)}") from error
        raise Unsuited(f"it does not add up: {sentence(error)}") from error


_DTYPES = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16)}
