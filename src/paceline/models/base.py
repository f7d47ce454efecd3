"""LanguageModel: the contract between the engine and the backends that compute logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence as Many
from contextlib import AbstractContextManager
from dataclasses import field

import torch
from torch.nn.functional import pad

from paceline.budget import Budget
from paceline.cache.base import Branching, KVCache
from paceline.errors import PacelineError
from paceline.frozen import frozen
from paceline.growth import Draft, Growth
from paceline.ranking import Ranking
from paceline.sequence import Sequence
from paceline.step import Feed, Segment, Step, Verdict
from paceline.torch_threads import quiet
from paceline.tree import DraftTree

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Weight formats that every backend supports."""
WEIGHTS = (*DTYPES, "w16a16", "int8", "int4", "w8a8", "w4a8")
"""All weight formats, those of packed weights included; lossless means lossless relative to the target in its format."""
KV_CACHES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""Narrow formats of keys and values on a GPU; like the weight format, they are part of what the target is."""


ROUGH = 0.3
"""Largest allowed error of logits in half precision or with rounded keys and values: the median over rows, relative to the
spread of the logits."""


def weights_name(dtype: torch.dtype) -> str:
    """The format's name in `DTYPES`, else torch's name of the dtype."""
    return next((name for name, kind in DTYPES.items() if kind == dtype), str(dtype).removeprefix("torch."))


class ModelError(PacelineError):
    """A checkpoint or an architecture that cannot be used; the message is one sentence for the user."""


def check_formats(weights: str | None, kv_cache: str | None) -> None:
    """Raises ModelError for an unknown format of weights, or of keys and values. None: not given, so not checked."""
    if weights is not None and weights not in WEIGHTS:
        raise ModelError(f"weights can be held as {', '.join(WEIGHTS)}, not as '{weights}'")
    if kv_cache is not None and kv_cache not in KV_CACHES:
        raise ModelError(f"keys and values can be kept as {' or '.join(KV_CACHES)}, not as '{kv_cache}'")


@frozen
class Scores:
    """The result of one forward pass.

    logits: float32 [W, V], one row per wanted row of the step. taps: layer index -> [W, hidden], the hidden states that
    enter that layer (the number of layers: that leave the last one), for the same rows, in the float dtype of the backend.
    """

    logits: torch.Tensor
    taps: dict[int, torch.Tensor] = field(default_factory=dict)

    def of(self, trees: Many[DraftTree]) -> tuple[torch.Tensor, ...]:
        """The logits of each tree of the step, in their order: float32 [N, V], probes included."""
        sizes, rows = [len(tree) for tree in trees], self.logits.shape[0]
        if sizes == [rows]:
            return (self.logits,)
        return self.logits[: sum(sizes)].split(sizes) if trees else ()

    def taps_of(self, trees: Many[DraftTree]) -> list[dict[int, torch.Tensor]]:
        """The hidden states at the nodes of each tree of the step: layer index -> float32 [N, hidden], probes included."""
        sizes = [len(tree) for tree in trees]
        split = {layer: states[: sum(sizes)].float().split(sizes) for layer, states in self.taps.items()} if trees else {}
        return [{layer: states[at] for layer, states in split.items()} for at in range(len(trees))]

    def of_prompts(self, step: Step) -> list[tuple[Segment, torch.Tensor]]:
        """The segments that want the logits of committed tokens, with these: float32 [`prompt_rows`, V]."""
        segments = [segment for segment in step.segments if segment.prompt_rows]
        sizes = [segment.prompt_rows for segment in segments]
        return list(zip(segments, self.logits[len(self.logits) - sum(sizes) :].split(sizes), strict=True)) if sizes else []


class LanguageModel(ABC):
    """Anything that scores a step. Weights are read-only; all state of a request lives in the cache."""

    name: str
    weights: str
    """The format its weights are held in, e.g. "fp32"."""
    weights_bytes: int
    """Bytes of memory that its weights take."""
    kv_cache: str | None = None
    """The narrow format of its keys and values; None where they are not narrowed beyond what its weight format implies."""
    vocab_size: int
    context_length: int
    layers: int = 0
    """Number of decoder layers that can be tapped (`Drafter.taps`); 0 if unknown."""
    branching: Branching
    eos_token_ids: frozenset[int]
    """End-of-text tokens, as the checkpoint states them; empty if it states none."""
    is_cascade = False
    """Whether other drafters draft for it while it drafts, in its own `extend`."""
    prefill_chunk = 512
    """The best number of prompt tokens per forward pass; the user may override the target's."""
    returns_early = False
    """Whether `score` returns while a GPU is still computing; reading a number of the result then waits."""
    drafts_whole = False
    """Whether drafting a chain always takes the time of the full depth, even if the chain stops early."""
    batch_invariant = False
    """Whether a row's logits have the same bits in every forward pass that contains it."""
    threads_of_its_own = False
    """Whether it computes on its own threads instead of torch's, which would occupy its cores by spinning."""

    def undisturbed(self, numbers: int) -> AbstractContextManager[None]:
        """A context for torch operations on so many numbers between forward passes: if the model has threads of its own, torch
        computes on the calling thread alone."""
        return quiet(numbers if self.threads_of_its_own else 0)

    @property
    def held(self) -> str:
        """Its formats, which are part of what the target is: "fp16", or "bf16, keys and values fp8"."""
        return self.weights + (f", keys and values {self.kv_cache}" if self.kv_cache else "")

    @property
    def described(self) -> str:
        """Name and formats: the reference that its answers are lossless against, e.g. "paceline-14m (fp16)"."""
        return f"{self.name} ({self.held})"

    @property
    def measured_as(self) -> str:
        """Its part of the key of measured costs: everything about it that decides how long its forward passes take."""
        return f"{self.described}, {self.weights_bytes} bytes"

    @abstractmethod
    def new_cache(self) -> KVCache:
        """An empty cache of the kind this model writes."""

    @abstractmethod
    def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
        """One forward pass over the staged rows of `step`; writes their keys and values into `cache`."""

    def forget(self) -> None:
        """Forget what was learnt from the texts of all requests so far; only a cascade learns from them."""

    def settle(self, key: int) -> None:
        """As `Drafter.settle`; does something in a cascade only."""

    def extend(
        self,
        sequences: Many[Sequence],
        budgets: Many[Budget],
        cache: KVCache,
        *,
        growth: Growth,
        vocab_size: int,
        source: str,
    ) -> list[DraftTree]:
        """Draft with this model: per sequence a tree of the shape and kind that `growth` asks for, within its budget.

        Tokens are this model's choices under the request's sampling. POINT and COUPLED: those with the largest scores, without
        or with the position's noise. Drawn kinds: `draws.siblings` of the distribution that the tree records. Confidences are
        the model's own: the softmax of the scores it chose by. A draft stops after a token that ends the request, or whose
        confidence is below the budget's floor. A sequence gets fewer tokens, down to none, where the context of this model ends.
        vocab_size: the target's; rows are cut or padded to it, since checkpoints with the same tokenizer may round their
        vocabulary differently.

        The tokens missing from the cache are fed first. A chain is fed and cached as it grows; of a tree that forks, the path of
        first children stays cached at the end. The caller truncates the cache to the accepted tokens.
        """
        drafts = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            # with `amateur`, the distribution after the last token is needed, so that token is fed too; each level has a node
            depth = min(self.room(sequence, cache) - growth.amateur, budget.nodes)
            drafts.append(Draft(sequence, budget.within(Budget(budget.nodes, depth)), growth, source))
        live = [draft for draft in drafts if draft.asked]
        self._catch_up([draft.sequence for draft in live], cache)
        while live:
            for draft in live:
                if draft.forks:
                    cache.truncate(draft.sequence.key, len(draft.sequence.tokens) - 1)
            step = Step.of([draft.feed(cache.length(draft.sequence.key)) for draft in live])
            cache.stage(step)
            logits = self.score(step, cache).logits
            # on a device, rank all rows together: reading them one by one would wait for each
            ranking = Ranking(together=self.returns_early)
            with self.undisturbed(vocab_size):
                if self.vocab_size != vocab_size:
                    logits = pad(logits, (0, vocab_size - self.vocab_size), value=-torch.inf)
                for draft, rows in zip(live, logits.split([segment.nodes for segment in step.segments]), strict=True):
                    draft.look(rows[-len(draft.asked) :], ranking)
                chosen = ranking.found()
                for draft in live:
                    draft.grow(chosen)
            cache.commit([draft.kept() for draft in live])
            live = [draft for draft in live if draft.asked]
        return [draft.tree() for draft in drafts]

    def room(self, sequence: Sequence, cache: KVCache) -> int:
        """Levels that can be drafted before this model's context ends, 0 or less for none; the last level is never fed."""
        return self.context_length - len(sequence.tokens) + 1

    def _catch_up(self, sequences: Many[Sequence], cache: KVCache, most: int | None = None) -> None:
        """Feed all missing tokens but each sequence's last, if they are more than `most`, by default `prefill_chunk`."""
        missing = [(sequence, tuple(sequence.tokens[cache.length(sequence.key) : -1])) for sequence in sequences]
        if sum(len(tokens) for _, tokens in missing) > (most or self.prefill_chunk):
            self.logits_after([(sequence, tokens) for sequence, tokens in missing if tokens], cache)

    def logits_after(self, feeds: Many[tuple[Sequence, tuple[int, ...]]], cache: KVCache) -> torch.Tensor:
        """Feed and commit tokens after the cached ones, in bounded pieces; float32 [S, V], the logits after the last ones.

        feeds: per sequence the tokens to feed, which need not be committed yet.
        """
        left = [(sequence, list(tokens)) for sequence, tokens in feeds]
        rows: dict[int, torch.Tensor] = {}
        while left:
            share = max(self.prefill_chunk // len(left), 1)
            pieces = []
            for sequence, tokens in left:
                piece, ends = tuple(tokens[:share]), len(tokens) <= share
                tree = DraftTree.root(piece[-1]) if ends else None
                pieces.append(Feed(sequence, cache.length(sequence.key), piece, tree))
            step = Step.of(pieces)
            cache.stage(step)
            scores = self.score(step, cache)
            cache.commit([Verdict()] * len(pieces))
            ended = [feed.sequence.key for feed in pieces if feed.tree is not None]
            rows.update(zip(ended, scores.logits, strict=True))
            left = [(sequence, tokens[share:]) for sequence, tokens in left if len(tokens) > share]
        return torch.stack([rows[sequence.key] for sequence, _ in feeds])
