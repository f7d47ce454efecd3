"""NativeModel: a Llama-form model run from packed weights, one compiled call per step.

A second road beside the transformers adapter, behind the same contract. A row's logits have the same bits whatever rides beside
it and on any number of threads, so that verifying equals decoding in every format, int4 included. Activations, keys and values
are float32; under whole-number formats embeddings keep the checkpoint's precision.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import getLogger
from threading import Timer
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from paceline.cache.base import Branching
from paceline.cache.panels import PanelCache, Shape, Slab
from paceline.growth import Growth
from paceline.kernels.native import layout
from paceline.kernels.native.attention import scratch_bytes
from paceline.kernels.native.decoder import step_part
from paceline.kernels.native.drafting import draft_part
from paceline.kernels.native.formats import padded
from paceline.kernels.native.products import product_address
from paceline.kernels.native.threads import most_threads, spread
from paceline.kernels.native.vectors import FUSES, PANEL
from paceline.models.base import LanguageModel, ModelError, Scores
from paceline.models.checkpoint import Checkpoint
from paceline.models.forms import Unsuited, form_of
from paceline.models.packing import Weights
from paceline.models.quiet import sentence
from paceline.models.rotation import Rotation
from paceline.models.taps import check_tap
from paceline.models.tensors import Tensors
from paceline.noise import key, stream
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Step
from paceline.tree import Budget, DraftTree, Proposal


class NativeModel(LanguageModel):
    """Not to be called from two threads at once: the scratch of a forward belongs to the model."""

    def __init__(self, weights: Weights, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        form = weights.form
        self.name, self.weights, self.context_length = name, weights.format, context_length
        self.weights_bytes = weights.held_bytes
        self.vocab_size = form.vocabulary
        self.eos_token_ids = frozenset(token for token in eos_token_ids if token < form.vocabulary)
        self.branching = Branching.TREE
        self.packed = weights
        self._shape = Shape(len(form.layers), form.key_heads, form.head_size, PANEL)
        self._scratch = _Scratch(weights)
        self._step, self._draft = step_part(), draft_part()
        self._call = np.zeros(1, layout.CALL)
        call = self._call[0]
        call["product"] = product_address("fp32")
        for field in ("model", "layers", "norms", "matrices"):
            call[field] = getattr(weights, field).ctypes.data

    def new_cache(self) -> PanelCache:
        return PanelCache(self._shape)

    def score(self, step: Step, cache: PanelCache, taps: Iterable[int] = ()) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        feed = _Feed(
            tokens=np.array(step.tokens, np.int64),
            positions=np.array(step.row_positions, np.int64),
            parents=np.array([parent for segment in step.segments for parent in segment.row_parents], np.int64),
            wanted=np.array(step.wanted_rows, np.int64),
            # a draft that does not branch lies in its slots as committed tokens would
            segments=_records(
                (s.low, s.rows, s.start, s.rows if s.is_chain else s.chain, cache.slab(s.sequence.key)) for s in step.segments
            ),
        )
        layers, tapped = len(self.packed.form.layers), tuple(taps)
        for layer in tapped:
            check_tap(layer, layers)
        if not 0 <= min(step.tokens) <= max(step.tokens) < self.vocab_size:
            raise ValueError(f"a step holds a token outside of the vocabulary of {self.vocab_size}")
        logits = self._logits(len(feed.wanted))
        threads = self._prepared(feed, max(segment.end for segment in step.segments), logits)
        captured = {layer: torch.empty(len(feed.wanted), self.packed.form.hidden) for layer in tapped}
        if captured:
            places = np.zeros(layers + 1, np.int64)
            places[list(captured)] = [hidden.data_ptr() for hidden in captured.values()]
            self._call["taps"] = places.ctypes.data
        spread(self._step, threads, self._call.ctypes.data)
        self._call["taps"] = 0
        return Scores(logits[:, : self.vocab_size], captured)

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
        """As `LanguageModel.extend`; chains of choices under no more than a temperature are drafted in one call."""
        if growth.chain is None or growth.amateur or not all(_compiled(sequence.params) for sequence in sequences):
            return super().extend(sequences, budgets, cache, growth=growth, vocab_size=vocab_size, source=source)
        live: list[tuple[Sequence, Budget]] = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            depth = min(budget.depth, budget.nodes, growth.chain, self.room(sequence, cache))
            if depth > 0:
                live.append((sequence, replace(budget, depth=depth)))
        trees = self._chains(live, cache, growth.kind, vocab_size, source) if live else []
        found = dict(zip((sequence.key for sequence, _ in live), trees, strict=True))
        return [found.get(sequence.key) or DraftTree.root(sequence.root) for sequence in sequences]

    def _chains(
        self, live: list[tuple[Sequence, Budget]], cache: PanelCache, kind: Proposal, vocab_size: int, source: str
    ) -> list[DraftTree]:
        """A chain of `depth` tokens for each sequence, fewer behind doubt or what is no number."""
        self._catch_up([sequence for sequence, _ in live], cache)
        missing = [sequence.tokens[cache.length(sequence.key) :] for sequence, _ in live]
        starts = [cache.length(sequence.key) for sequence, _ in live]
        slabs = [cache.reserve(sequence.key, len(sequence.tokens) + budget.depth) for sequence, budget in live]
        lows = np.cumsum([0, *map(len, missing)])
        feed = _Feed(
            tokens=np.array([token for tokens in missing for token in tokens], np.int64),
            positions=np.concatenate([np.arange(a, a + len(m)) for a, m in zip(starts, missing, strict=True)]),
            parents=np.concatenate([np.arange(-1, len(tokens) - 1) for tokens in missing]),
            wanted=lows[1:] - 1,
            segments=_records(zip(lows[:-1], map(len, missing), starts, map(len, missing), slabs, strict=True)),
        )
        count, deepest = len(live), max(budget.depth for _, budget in live)
        draft = _Chains(live, kind, source, min(self.vocab_size, vocab_size), vocab_size)
        logits = self._logits(count * deepest if kind.drawn else count)
        threads = self._prepared(feed, max(len(sequence.tokens) + budget.depth for sequence, budget in live), logits)
        level_bytes = 4 * count * logits.shape[1] if kind.drawn else 0
        fixed = (self._call.ctypes.data, self._step, count, deepest, draft.known, logits.shape[1], level_bytes, _CHOICES[kind])
        job = np.array([(*fixed, *(array.ctypes.data for array in draft.arrays))], layout.DRAFT)
        spread(self._draft, threads, job.ctypes.data)
        trees = draft.trees(logits.view(-1, count, logits.shape[1]))
        for (sequence, _), tree in zip(live, trees, strict=True):
            # the last one drafted is never fed
            cache.advance(sequence.key, len(sequence.tokens) + max(len(tree) - 2, 0))
        return trees

    def _threads(self, rows: int) -> int:
        """How many threads a forward is worth: meeting costs some microseconds, and far more where the machine is busy."""
        worth = self.packed.read_bytes * max(rows // _ROWS_PER_READ, 1) // _BYTES_PER_THREAD
        return max(min(torch.get_num_threads(), most_threads(), worth), 1)

    def _logits(self, rows: int) -> torch.Tensor:
        return torch.empty(rows, self.packed.head_width)

    def _prepared(self, feed: _Feed, longest: int, logits: torch.Tensor) -> int:
        """Fill in the call of a step; the number of threads it is to run on. longest: slots of its longest sequence."""
        threads = self._threads(len(feed.tokens))
        self.packed.rotate_up_to(longest)
        call = self._call[0]
        self._scratch.reserve(call["scratch"], threads, len(feed.tokens), longest)
        call["threads"], call["logits"] = threads, logits.data_ptr()
        call["rows"], call["wanted_count"], call["segment_count"] = len(feed.tokens), len(feed.wanted), len(feed.segments)
        for name in ("tokens", "positions", "parents", "wanted", "segments"):
            call[name] = getattr(feed, name).ctypes.data
        return threads


_BYTES_PER_THREAD = 1 << 22
_ROWS_PER_READ = 8
"""From about this many rows on, arithmetic and not the reading of weights is what takes the time."""


@dataclass(frozen=True)
class _Feed:
    """The arrays of a step: int64 but for the segments, which are SEGMENT records."""

    tokens: np.ndarray
    positions: np.ndarray
    parents: np.ndarray
    wanted: np.ndarray
    segments: np.ndarray


def _records(segments: Iterable[tuple[int, int, int, int, Slab]]) -> np.ndarray:
    """SEGMENT records of (low, rows, start, chain, slab)."""
    return np.array(
        [(*place, slab.keys.data_ptr(), slab.values.data_ptr(), slab.capacity) for *place, slab in segments], layout.SEGMENT
    )


def _compiled(params: SamplingParams) -> bool:
    """Whether a token can be chosen in compiled code."""
    filters = params.top_k or params.top_p < 1.0 or params.min_p
    return not params.shapes_logits and (params.temperature == 0.0 or not filters)


_CHOICES = {kind: layout.DRAWN if kind.drawn else layout.LIKELIEST for kind in Proposal} | {Proposal.COUPLED: layout.COUPLED}


class _Chains:
    """Chains that are drafted in one call. known: tokens that may be drafted. arrays: those of a DRAFT record, in its order."""

    def __init__(self, live: list[tuple[Sequence, Budget]], kind: Proposal, source: str, known: int, vocab_size: int) -> None:
        self._live, self._kind, self._source, self.known, self._vocab_size = live, kind, source, known, vocab_size
        shape = len(live), max(budget.depth for _, budget in live)
        keys = np.zeros(shape, np.uint64)
        for line, (sequence, budget) in zip(keys, live, strict=True):
            if kind is not Proposal.POINT and sequence.params.temperature > 0.0:
                line[: budget.depth] = [self._key(sequence, level) for level in range(budget.depth)]
        self._floors = np.array([budget.floor for _, budget in live], np.float32)
        self._chosen, self._confidences = np.full(shape, -1, np.int64), np.zeros(shape, np.float32)
        self.arrays = (
            np.arange(len(live)),
            np.array([budget.depth for _, budget in live], np.int64),
            self._floors,
            np.array([sequence.params.temperature for sequence, _ in live], np.float32),
            keys,
            self._chosen,
            self._confidences,
        )

    def _key(self, sequence: Sequence, level: int) -> int:
        """Of the noise: that of the token's position, or, as `draws.siblings` has it, of the draft's own stream for a node."""
        text = len(sequence.tokens)
        if self._kind is Proposal.COUPLED:
            return key(sequence.seed, text + level)
        return key(stream(sequence.seed, self._source, level), text)

    def trees(self, logits: torch.Tensor) -> list[DraftTree]:
        """What was drafted. logits: float32 [levels, S, ...], read where tokens are drawn: a level's first rows are those of the
        sequences that came so far."""
        found, came = [], [0] * self._chosen.shape[1]
        for place, (sequence, budget) in enumerate(self._live):
            tokens, held = self._chosen[place].tolist(), self._confidences[place].tolist()
            kind = self._kind if sequence.params.temperature > 0.0 else Proposal.POINT
            count, rows = 0, list[torch.Tensor]()
            for level in range(budget.depth):
                if kind.drawn:
                    rows.append(logits[level, came[level]])
                came[level] += 1
                count += tokens[level] >= 0
                if count == level or held[level] < self._floors[place]:
                    break
            found.append(self._tree(sequence, kind, tokens[:count], held[:count], rows[:count]))
        return found

    def _tree(
        self, sequence: Sequence, kind: Proposal, tokens: list[int], held: list[float], rows: list[torch.Tensor]
    ) -> DraftTree:
        if not tokens:
            return DraftTree.root(sequence.root)
        proposals = {}
        if rows:
            probs = (torch.stack(rows)[:, : self.known] / sequence.params.temperature).softmax(-1)
            probs = pad(probs, (0, self._vocab_size - self.known))
            proposals = {(level, self._source): row for level, row in enumerate(probs)}
        sources = ("", *[self._source] * len(tokens))
        return DraftTree((sequence.root, *tokens), tuple(range(-1, len(tokens))), kind, proposals, sources, (1.0, *held))


class _Scratch:
    """What a forward writes on its way; grown to the largest step seen."""

    def __init__(self, weights: Weights) -> None:
        form = weights.form
        width = padded(form.hidden, PANEL)
        self._per_row = {
            "residual": width,
            "projected": weights.widths[layout.QKV],
            "attended": form.heads * form.head_size,
            "gated": weights.widths[layout.GATE_UP],
            "inner": weights.widths[layout.GATE_UP] // 2,
            "branch": width,
        }
        self._widest = weights.widest_input
        self._head_size = form.head_size
        self._held: dict[str, torch.Tensor] = {}
        self._counter = np.zeros(8, np.int64)
        self._threads = self._rows = self._longest = 0

    def reserve(self, record: Any, threads: int, rows: int, longest: int) -> None:
        """Point the record at room for a step. longest: slots of its longest sequence."""
        self._counter[:] = 0
        if threads <= self._threads and rows <= self._rows and longest <= self._longest:
            return
        self._threads, self._rows = max(self._threads, threads), max(self._rows, rows)
        if longest > self._longest:
            self._longest = padded(max(longest, 2 * self._longest, 256), PANEL)
        for name, width in self._per_row.items():
            self._point(record, name, self._rows * width)
        record["counter"], record["longest"] = self._counter.ctypes.data, self._longest
        each = {
            "tiles": 4 * self._rows * self._widest,
            "row": 4 * self._widest,
            "attention": scratch_bytes(self._head_size, self._longest),
        }
        for name, size in each.items():
            # each thread's part on cache lines of its own
            size = padded(size, 128) + 128
            record[name + "_bytes"] = size
            self._point(record, name, self._threads * size // 4)

    def _point(self, record: Any, name: str, count: int) -> None:
        # cleared, because padding between rows is read too, and must be numbers
        self._held[name] = torch.empty(count)
        self._held[name].numpy().fill(0)
        record[name] = self._held[name].data_ptr()


def native_model(checkpoint: Checkpoint, config: Any, context_length: int, weights: str | None = None) -> NativeModel:
    """The model of a checkpoint on this road. config: transformers' own. Raises Unsuited where it must go by the other one."""
    if not FUSES or sys.platform == "win32":
        raise Unsuited("compiled kernels need a processor with fused multiply-add, and POSIX threads")
    try:
        form = form_of(config)
        rotation = Rotation(config, form.rotary)
        for kind in form.rotations:
            rotation.tables(1, kind)
    # a configuration from a stranger may be anything; the other road says what is wrong with it
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unsuited(f"its configuration does not add up: {sentence(error)}") from error
    with _announced():
        step_part()
        draft_part()
    packed = Weights(form, Tensors(checkpoint), rotation, weights)
    model = NativeModel(packed, checkpoint.path.name, context_length, checkpoint.eos_token_ids)
    text = Sequence(0, tuple(range(min(3, form.vocabulary))), SamplingParams(), seed=0)
    if not bool(model.logits_after([(text, tuple(text.tokens))], model.new_cache()).isfinite().all()):
        raise ModelError(f"the weights of '{checkpoint.path}' give logits that are not finite numbers")
    return model


@contextmanager
def _announced() -> Iterator[None]:
    """Say so where kernels are compiled and not read from disk: then nothing is seen to happen for some seconds."""
    message = "compiling kernels for this processor; later starts find them on disk"
    timer = Timer(_PATIENCE_S, getLogger("paceline").info, [message])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_PATIENCE_S = 1.5
"""Reading them takes less."""
