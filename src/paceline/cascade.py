"""Cascade: a model with a drafter ahead of it is a model again, and can draft for a larger one: `a^b`.

What it drafts is token for token what its model would have drafted alone, in fewer of its forwards: inside, `match` verifies with
the noise of the request, as outside.

Source: cascades of drafts, Spector and Re, Accelerating LLM Inference with Staged Speculative Decoding (arXiv:2308.04623).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass
from itertools import takewhile

from paceline.cache.base import KVCache
from paceline.constraint import Ahead
from paceline.drafters.base import Drafter
from paceline.growth import Growth
from paceline.models.base import LanguageModel, Scores
from paceline.policies.base import Policy
from paceline.sampling import LogitsError
from paceline.sequence import Sequence
from paceline.speculative import Speculative, Work
from paceline.step import Step, Verdict
from paceline.tree import Budget, DraftTree, Proposal
from paceline.verifiers.base import Verifier

_PIECE = 512
"""Rows per sequence of one forward while a long prompt is read."""


class Cascade(LanguageModel):
    """model: the one whose drafts these are. drafter: what runs ahead of it. verifier: `match`, or no longer the same drafts."""

    def __init__(self, model: LanguageModel, drafter: Drafter, verifier: Verifier, policy: Policy) -> None:
        self.name, self.weights, self.weights_bytes = model.name, model.weights, model.weights_bytes
        self.vocab_size, self.context_length = model.vocab_size, model.context_length
        self.branching, self.eos_token_ids = model.branching, model.eos_token_ids
        self._pair = Speculative(model, drafter, verifier, policy)
        self._seen: dict[int, list[int]] = {}
        """What the drafter inside was last shown of a sequence, drafts of that time included."""

    def new_cache(self) -> KVCache:
        """The one cache of this pair: it has a single owner."""
        return _PairCache(self._pair, self._seen)

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
        """As `LanguageModel.extend`. Chains of the model's own choices take the fewer forwards; any other draft takes its own."""
        levels = growth.chain
        if levels is None or growth.kind.drawn or growth.amateur:
            model, own = self._pair.target, self._pair.cache
            return model.extend(sequences, budgets, own, growth=growth, vocab_size=vocab_size, source=source)
        drafts = [
            _Draft(
                sequence,
                self._shadow(sequence),
                max(min(levels, budget.nodes, budget.depth, self.room(sequence, cache)), 0),
            )
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        while live := [draft for draft in drafts if draft.left > 0]:
            try:
                self._pair.step([self._work(draft) for draft in live], self)
            except LogitsError:
                # logits that are not numbers end the draft, not the request
                break
        return [self._finished(draft, vocab_size, source) for draft in drafts]

    def cut(self, sequence: Sequence, verdict: Verdict) -> Verdict:
        """Nothing ends a draft but its depth: where the text ends is for the target to say."""
        return verdict

    def _shadow(self, sequence: Sequence) -> Sequence:
        """The same request, to be drafted on; what is drafted counts as generated, as it would for the request."""
        shadow = Sequence(sequence.key, sequence.prompt, sequence.params, sequence.seed, sequence.stop_ids)
        shadow.commit(tuple(sequence.generated), ())
        if sequence.constraint is not None:
            # it has read what is committed
            shadow.constraint = Ahead(sequence.constraint)
        seen = self._seen.pop(sequence.key, None)
        if seen is not None:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(seen, shadow.tokens, strict=False)))
            self._pair.drafter.truncate(sequence.key, same)
        return shadow

    def _work(self, draft: _Draft) -> Work:
        shadow, cached = draft.shadow, self._pair.cache.length(draft.shadow.key)
        missing = len(shadow.tokens) - cached
        room = Budget(self._pair.drafter.budget.nodes, draft.left - 1)
        return Work(shadow, cached, min(missing, _PIECE), room)

    def _finished(self, draft: _Draft, vocab_size: int, source: str) -> DraftTree:
        """The chain that was drafted; of the cache no more is kept than belongs to it."""
        text, key = len(draft.sequence.tokens), draft.sequence.key
        self._seen[key] = draft.shadow.tokens
        tokens = list(takewhile(lambda token: token < vocab_size, draft.shadow.tokens[text : text + draft.depth]))
        cache = self._pair.cache
        if cache.length(key) > text + max(len(tokens) - 1, 0):
            cache.truncate(key, text + max(len(tokens) - 1, 0))
        kind = Proposal.POINT if draft.sequence.params.temperature == 0.0 else Proposal.COUPLED
        return DraftTree.chain(draft.sequence.root, tokens, source, kind)


@dataclass
class _Draft:
    """depth: tokens to draft; the shadow may run some further."""

    sequence: Sequence
    shadow: Sequence
    depth: int

    @property
    def left(self) -> int:
        return self.depth - (len(self.shadow.tokens) - len(self.sequence.tokens))


class _PairCache(KVCache):
    """The model's cache, as its owner sees it: whoever forgets a sequence makes the drafter inside forget it too."""

    def __init__(self, pair: Speculative, seen: dict[int, list[int]]) -> None:
        self._pair, self._seen = pair, seen
        self.branching = pair.cache.branching

    def length(self, key: int) -> int:
        return self._pair.cache.length(key)

    def stage(self, step: Step) -> None:
        self._pair.cache.stage(step)

    def commit(self, verdicts: Many[Verdict]) -> None:
        self._pair.cache.commit(verdicts)

    def truncate(self, key: int, length: int) -> None:
        self._pair.cache.truncate(key, length)

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        self._pair.cache.fork(key, new_key, length)
        self._pair.drafter.fork(key, new_key)
        if key in self._seen:
            self._seen[new_key] = list(self._seen[key])

    def release(self, key: int) -> None:
        self._pair.release(key)
        self._seen.pop(key, None)

    @property
    def held_bytes(self) -> int:
        return self._pair.cache.held_bytes + self._pair.drafter.held_bytes
