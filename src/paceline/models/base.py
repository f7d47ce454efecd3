"""LanguageModel: the one contract between the engine and whatever computes logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass, field

import torch
from torch.nn.functional import pad

from paceline.cache.base import Branching, KVCache
from paceline.sampling import Context, best
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree, Proposal

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Formats in which every road holds weights."""
WEIGHTS = (*DTYPES, "int8", "int4", "w8a8")
"""Formats in which weights can be held, those of packed weights included; losslessness is against the target in its format."""


def weights_name(dtype: torch.dtype) -> str:
    """The format's name; that of torch for one that has none here."""
    return next((name for name, kind in DTYPES.items() if kind == dtype), str(dtype).removeprefix("torch."))


class ModelError(Exception):
    """A checkpoint or an architecture that cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True)
class Scores:
    """What one forward returns.

    logits: float32 [W, V], one row per wanted row of the step. taps: layer index -> [W, hidden], the hidden states that
    enter that layer (the number of layers: that leave the last one), for the same rows.
    """

    logits: torch.Tensor
    taps: dict[int, torch.Tensor] = field(default_factory=dict)

    def of(self, trees: Many[DraftTree]) -> tuple[torch.Tensor, ...]:
        """The logits of each tree of the step, in their order: float32 [N, V], probes included."""
        return self.logits.split([len(tree) for tree in trees]) if trees else ()


class LanguageModel(ABC):
    """Anything that scores a step. Weights are read-only; all state of a request lives in the cache."""

    name: str
    weights: str
    """The format its weights are held in, e.g. "fp32"."""
    weights_bytes: int
    """Bytes of memory that its weights take."""
    vocab_size: int
    context_length: int
    branching: Branching
    eos_token_ids: frozenset[int]
    """What ends a text, as the checkpoint says; empty where it does not."""

    @abstractmethod
    def new_cache(self) -> KVCache:
        """An empty cache of the kind this model writes."""

    @abstractmethod
    def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
        """One forward over the staged rows of `step`; writes their keys and values into `cache`."""

    def extend(
        self,
        sequences: Many[Sequence],
        depths: Many[int],
        cache: KVCache,
        *,
        width: int = 1,
        vocab_size: int,
        source: str,
    ) -> list[DraftTree]:
        """Draft with this model: per sequence a chain of up to `depth` tokens with its `width - 1` runners-up at each node.

        Tokens are this model's own choices under the request's sampling and, at a temperature, under the position's noise:
        the siblings are those with the largest noised scores (POINT when greedy, else COUPLED). The cache is first fed what
        it lacks, then the chain as it is drafted, and keeps both: whoever owns it truncates to what came true. A sequence
        gets fewer tokens, down to none, where the context of this model ends. vocab_size: the target's; a draft's rows are
        cut or padded to it, since checkpoints of one tokenizer may round their vocabulary differently.
        """
        drafts = [
            _Draft(sequence, min(depth, self.context_length - len(sequence.tokens) + 1))
            for sequence, depth in zip(sequences, depths, strict=True)
        ]
        live = [draft for draft in drafts if draft.depth > 0]
        feeds: dict[int, tuple[int, ...]] = {id(d): tuple(d.sequence.tokens[cache.length(d.sequence.key) :]) for d in live}
        while live:
            logits = self.logits_after([(d.sequence, feeds[id(d)]) for d in live], cache)
            if self.vocab_size != vocab_size:
                logits = pad(logits, (0, vocab_size - self.vocab_size), value=-torch.inf)
            for draft, row in zip(live, logits, strict=True):
                draft.grow(row, width)
            live = [draft for draft in live if len(draft.chain) < draft.depth]
            feeds = {id(d): (d.chain[-1],) for d in live}
        return [draft.tree(source) for draft in drafts]

    def logits_after(self, feeds: Many[tuple[Sequence, tuple[int, ...]]], cache: KVCache) -> torch.Tensor:
        """Feed and commit tokens behind what is cached, in bounded pieces; float32 [S, V], the logits after the last ones.

        feeds: per sequence the tokens to feed, which need not be committed yet.
        """
        left = [(sequence, list(tokens)) for sequence, tokens in feeds]
        rows: dict[int, torch.Tensor] = {}
        while left:
            share = max(_PIECE // len(left), 1)
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


_PIECE = 512
"""Rows of one forward while a drafter catches up with a long prompt: bounds its memory, not its result."""


class _Draft:
    """One sequence's draft while it grows: a chain, and at each of its nodes the siblings that were runners-up."""

    def __init__(self, sequence: Sequence, depth: int) -> None:
        self.sequence, self.depth = sequence, depth
        self.chain: list[int] = []
        self.tokens, self.parents = [sequence.root], [-1]
        self.tip = 0

    def grow(self, logits: torch.Tensor, width: int) -> None:
        """Hang the `width` best children under the tip and go on from the best. logits: float32 [V]."""
        children = best(logits, Context(self.sequence, tuple(self.chain)), width)
        if not children:
            # logits that are not numbers end the draft, not the request
            self.depth = len(self.chain)
            return
        parent, self.tip = self.tip, len(self.tokens)
        self.tokens += children
        self.parents += [parent] * len(children)
        self.chain.append(children[0])

    def tree(self, source: str) -> DraftTree:
        kind = Proposal.POINT if self.sequence.params.temperature == 0.0 else Proposal.COUPLED
        sources = ("", *[source] * (len(self.tokens) - 1))
        return DraftTree(tuple(self.tokens), tuple(self.parents), kind, sources=sources)
