"""Cascade: drafter a drafts for draft model b, which drafts for the target: `a^b`.

Together they act as one draft model. It drafts, token for token, what b alone would have drafted, in fewer forward passes of b:
inside, `match` verifies a's drafts with the noise of the request, as the target does b's. Confidences are b's own, and the
budget's rule for ending a draft applies to them.

Only chains of b's own choices are drafted this way: under `match`, and for greedy requests under any verifier but `contrastive`.
Wider drafts (width, samples, tree), drafts at a temperature that a verifier wants sampled (`rejection`, `block` and the like) or
made of the most likely tokens (`typical`, `relaxed`), and those of an amateur (`contrastive`) are made by b alone: a is not run,
though the draft is still named `a^b`.

Source: cascades of drafts, Spector and Re, Accelerating LLM Inference with Staged Speculative Decoding (arXiv:2308.04623).
Proposals: those of b
Taps: none of the target
Branching: what b needs
Trained: no (any checkpoint)
Cost: the forward passes of b, fewer by the tokens of a that b accepts, and the drafts of a
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import torch

from paceline.budget import Budget
from paceline.cache.base import KVCache
from paceline.constraint import Ahead
from paceline.drafters.base import Drafter
from paceline.drafting import Work
from paceline.growth import Growth
from paceline.models.base import LanguageModel, Scores
from paceline.policies.base import Policy
from paceline.ranking import chosen_shares
from paceline.sampling import Context, LogitsError, target_scores
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.step import Step, Verdict
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Verifier


class Cascade(LanguageModel):
    """model: the model that drafts. drafter: drafts for this model. verifier: `match`; any other would change the drafts."""

    is_cascade = True

    def __init__(self, model: LanguageModel, drafter: Drafter, verifier: Verifier, policy: Policy) -> None:
        self.name, self.weights, self.weights_bytes = model.name, model.weights, model.weights_bytes
        self.vocab_size, self.context_length, self.layers = model.vocab_size, model.context_length, model.layers
        self.branching, self.eos_token_ids = model.branching, model.eos_token_ids
        self.prefill_chunk = model.prefill_chunk
        self._verifier = _Confident(verifier)
        self._pair = Speculative(model, drafter, self._verifier, policy)
        self._shadows: dict[int, _Shadow] = {}
        self._seen: dict[int, list[int]] = {}
        """Key -> tokens that the inner drafter has seen, for sequences without a shadow yet that were given another's state."""
        self._requests: dict[int, Sequence] = {}
        """Requests that are drafted for, so that the inner drafter can be told how they ended."""

    def new_cache(self) -> KVCache:
        """The one cache of this pair: it has a single owner."""
        return _PairCache(self, self._pair.cache)

    def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
        return self._pair.target.score(step, self._pair.cache, taps)

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
        """As `LanguageModel.extend`. Chains of the model's own choices take fewer forwards; the model alone drafts all others."""
        levels = None if growth.amateur else growth.chain
        places = [
            place
            for place, sequence in enumerate(sequences)
            if levels is not None and (growth.kind is Proposal.COUPLED or sequence.params.temperature == 0.0)
        ]
        drafts = [self._draft(sequences[at], budgets[at], levels or 0, cache) for at in places]
        trees = dict(zip(places, self._ahead(drafts, vocab_size, source), strict=True))
        rest = [place for place in range(len(sequences)) if place not in trees]
        if rest:
            model, own = self._pair.target, self._pair.cache
            options = {"growth": growth, "vocab_size": vocab_size, "source": source}
            apart = model.extend([sequences[at] for at in rest], [budgets[at] for at in rest], own, **options)
            trees.update(zip(rest, apart, strict=True))
        return [trees[place] for place in range(len(sequences))]

    def _draft(self, sequence: Sequence, budget: Budget, levels: int, cache: KVCache) -> _Draft:
        """A new draft of up to `levels` levels."""
        depth = max(min(levels, budget.nodes, budget.depth, self.room(sequence, cache)), 0)
        return _Draft(sequence, self._shadow(sequence), budget, depth)

    def _ahead(self, drafts: Many[_Draft], vocab_size: int, source: str) -> list[DraftTree]:
        """The chains drafted, in fewer forwards than levels."""
        while live := [draft for draft in drafts if draft.left > 0]:
            try:
                # together they read no more of their texts than one alone would
                rows = max(self.prefill_chunk // len(live), 1)
                self._pair.step([self._work(draft, rows) for draft in live], self)
            except LogitsError as error:
                # logits that are not numbers end their own draft (or all, if it is unknown), never a request
                for draft in [draft for draft in live if draft.shadow is error.sequence] or live:
                    draft.depth -= draft.left
                continue
            for draft in live:
                draft.judge(self._verifier.confidences_of(draft.shadow.key))
        return [self._finished(draft, vocab_size, source) for draft in drafts]

    def cut(self, sequence: Sequence, verdict: Verdict) -> Verdict:
        """Return the verdict uncut: where the text ends is decided by the target."""
        return verdict

    def _shadow(self, sequence: Sequence) -> Sequence:
        """A copy of the request to draft on; drafted tokens count as generated, as they would for the request."""
        key = sequence.key
        self._requests[key] = sequence
        known = self._shadows.get(key)
        if known is None:
            seen = self._seen.pop(key, None)
            known = self._shadows[key] = _Shadow.of(sequence)
            if seen is not None:
                self._pair.drafter.truncate(key, _alike(seen, known.sequence.tokens))
        else:
            self._follow(known, sequence)
        if sequence.constraint is not None:
            # the constraint has already read the committed tokens
            known.sequence.constraint = Ahead(sequence.constraint)
        return known.sequence

    def _follow(self, shadow: _Shadow, sequence: Sequence) -> None:
        """Bring a shadow, and the inner drafter's state for it, up to the request."""
        shown = len(shadow.sequence.tokens)
        right = shadow.follow(sequence)
        if right < shown:
            self._pair.drafter.truncate(sequence.key, right)

    def _work(self, draft: _Draft, rows: int) -> Work:
        """rows: how many the draft may feed, not counting those of inner drafts."""
        shadow, cached = draft.shadow, self._pair.cache.length(draft.shadow.key)
        missing = len(shadow.tokens) - cached
        room = Budget(self._pair.drafter.budget.nodes, draft.left - 1)
        return Work(shadow, cached, min(missing, rows), room)

    def _finished(self, draft: _Draft, vocab_size: int, source: str) -> DraftTree:
        """The chain that was drafted; truncates the cache to it."""
        text, key = len(draft.sequence.tokens), draft.sequence.key
        tokens = list(takewhile(lambda token: token < vocab_size, draft.shadow.tokens[text : text + draft.depth]))
        cache = self._pair.cache
        if cache.length(key) > text + max(len(tokens) - 1, 0):
            cache.truncate(key, text + max(len(tokens) - 1, 0))
        kind = Proposal.POINT if draft.sequence.params.temperature == 0.0 else Proposal.COUPLED
        return DraftTree.chain(draft.sequence.root, tokens, source, kind, draft.confidences[: len(tokens)])

    def forget(self) -> None:
        """Forget what the inner drafter learnt from the texts of all requests so far."""
        self._pair.drafter.forget()

    def took_back(self, key: int, length: int) -> None:
        """Only the first `length` tokens are still known to be the request's: when its text is tokenised again, tokens that were
        committed before may change."""
        shadow = self._shadows.get(key)
        if shadow is not None:
            shadow.committed = min(shadow.committed, length)

    def settle(self, key: int) -> None:
        """Tell the inner drafter that a sequence ended, so that it can remember the answer."""
        request, shadow = self._requests.pop(key, None), self._shadows.get(key)
        if request is not None and request.finish_reason not in (None, "abort"):
            if shadow is not None:
                # for a cascade nested further inside, this shadow is the request
                self._follow(shadow, request)
                shadow.sequence.finish_reason = request.finish_reason
            self._tell(request)
        self._pair.drafter.settle(key)

    def release(self, key: int) -> None:
        """Forget a sequence."""
        self.settle(key)
        self._pair.release(key)
        self._shadows.pop(key, None)
        self._seen.pop(key, None)

    def _tell(self, request: Sequence) -> None:
        """Show a request that ended to the inner drafters that watch all requests: no inner step is ever a request's last."""
        nothing = Scores(torch.empty(1, self.vocab_size).fill_(torch.nan))
        for part in self._pair.drafter.parts:
            if part.watches:
                part.observe([request], [DraftTree.root(request.root)], [Verdict()], nothing)

    def fork(self, key: int, new_key: int, length: int) -> None:
        """Give `new_key` the state of `key`."""
        self._pair.cache.fork(key, new_key, length)
        self._pair.drafter.fork(key, new_key, length)
        self._show(key, new_key)

    def move(self, key: int, new_key: int) -> None:
        """As `fork`, then forget `key`."""
        self.settle(key)
        self._pair.drafter.move(key, new_key, self._pair.cache.length(key))
        self._pair.cache.move(key, new_key)
        self._show(key, new_key)
        self.release(key)

    def _show(self, key: int, new_key: int) -> None:
        # `key` itself may have been given its state and have no shadow yet
        seen = self._shadows[key].sequence.tokens if key in self._shadows else self._seen.get(key)
        if seen is not None:
            self._seen[new_key] = list(seen)

    @property
    def held_bytes(self) -> int:
        """Bytes that the model's cache and the inner drafter hold per sequence, summed over all sequences."""
        return self._pair.cache.held_bytes + self._pair.drafter.sequence_bytes


@dataclass
class _Shadow:
    """A request as the inner pair sees it, drafts included. committed: length of the request when it was last followed."""

    sequence: Sequence
    committed: int

    @classmethod
    def of(cls, request: Sequence) -> _Shadow:
        sequence = Sequence(
            request.key,
            request.prompt,
            # nobody reads the inner model's own log-probabilities
            request.params.model_copy(update={"logprobs": None, "prompt_logprobs": None}),
            request.seed,
            request.stop_ids,
            reference=request.reference,
            tenant=request.tenant,
        )
        sequence.commit(tuple(request.generated), ())
        return cls(sequence, len(request.tokens))

    def follow(self, request: Sequence) -> int:
        """Take back what was drafted wrongly and catch up with the request; returns how many tokens were right."""
        shadow = self.sequence
        # an interrupt during an earlier call may have left it shorter
        known = min(self.committed, len(shadow.tokens))
        right = known + _alike(shadow.tokens[known:], request.tokens[known:])
        # the request's constraint has already read the tokens committed below
        shadow.constraint = None
        shadow.sources.clear()
        shadow.take_back(right)
        shadow.commit(tuple(request.tokens[right:]), ())
        self.committed = len(request.tokens)
        return right


def _alike(tokens: Many[int], others: Many[int]) -> int:
    """Length of the common prefix of two texts, in tokens."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, others, strict=False)))


class _Confident(Verifier):
    """A verifier that also records the inner model's confidence in each emitted token."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._confidences: dict[int, list[float]] = {}

    def confidences_of(self, key: int) -> list[float]:
        """Confidences of the tokens that the last step emitted for a sequence; returned only once."""
        return self._confidences.pop(key, [])

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        verdicts = self._verifier(sequences, trees, logits)
        self._confidences = {
            sequence.key: _confidences(sequence, rows, verdict)
            for sequence, rows, verdict in zip(sequences, logits, verdicts, strict=True)
        }
        return verdicts


def _confidences(sequence: Sequence, rows: torch.Tensor, verdict: Verdict) -> list[float]:
    """Confidences of the tokens that a step emitted for a sequence."""
    return [
        confidence(rows[node], Context(sequence, verdict.tokens[:level]), verdict.tokens[level])
        for level, node in enumerate((0, *verdict.path))
    ]


def confidence(row: torch.Tensor, context: Context, token: int) -> float:
    """A model's confidence in the token it chose: the token's share in the softmax of the scores it was chosen by, the position's
    noise included. row: float32 [V], the model's logits. Raises LogitsError where they are not numbers."""
    scores, sequence = target_scores(row, context).cpu().numpy(), context.sequence
    if not np.isfinite(scores.max()):
        raise LogitsError(sequence)
    noise = (sequence.seed, context.position) if sequence.params.temperature > 0.0 else None
    return float(chosen_shares(scores, [token], noise)[0])


@dataclass
class _Draft:
    """depth: tokens to draft; the shadow may hold a few more. confidences: of the tokens drafted. reach: how likely all of them
    are right, by the budget's stopping rule; 1 without one."""

    sequence: Sequence
    shadow: Sequence
    budget: Budget
    depth: int
    confidences: list[float] = field(default_factory=list)
    reach: float = 1.0

    @property
    def left(self) -> int:
        return self.depth - (len(self.shadow.tokens) - len(self.sequence.tokens))

    def judge(self, confidences: Many[float]) -> None:
        """Add the confidences of the tokens that a step drafted, and end the draft behind the first token that is too unlikely or
        ends the text, as the model alone would."""
        stopping, text = self.budget.stopping, len(self.sequence.tokens)
        for held in confidences:
            token = self.shadow.tokens[text + len(self.confidences)]
            self.confidences.append(held)
            level = len(self.confidences)
            self.reach = stopping.reach(self.reach, level, held) if stopping else 1.0
            doubted = held < self.budget.floor or (stopping and not stopping.goes_on(level, self.reach))
            if doubted or token in self.sequence.stop_ids:
                self.depth = min(self.depth, level)


class _PairCache(KVCache):
    """The model's cache as its owner sees it: releasing a sequence also releases it in the inner drafter."""

    def __init__(self, cascade: Cascade, cache: KVCache) -> None:
        self._cascade, self._cache = cascade, cache
        self.branching = self._cache.branching

    def length(self, key: int) -> int:
        return self._cache.length(key)

    def stage(self, step: Step) -> None:
        self._cache.stage(step)

    def commit(self, verdicts: Many[Verdict]) -> None:
        self._cache.commit(verdicts)

    def truncate(self, key: int, length: int) -> None:
        self._cache.truncate(key, length)
        self._cascade.took_back(key, length)

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        self._cascade.fork(key, new_key, self._cache.length(key) if length is None else length)

    def move(self, key: int, new_key: int) -> None:
        self._cascade.move(key, new_key)

    def shrink(self, key: int) -> None:
        self._cache.shrink(key)

    def release(self, key: int) -> None:
        self._cascade.release(key)

    @property
    def held_bytes(self) -> int:
        return self._cascade.held_bytes
