"""A model behind another tokenizer: it reads and scores tokens of the target, and drafts as one of the target's family would.

Where a token of the target and one of the model's stand for the same bytes, one is read for the other, and the model's logit is
the target token's; what the model has no token for it cannot draft, and reads spelled out in several tokens of its own. Every
token is spelled alike wherever it stands, so that what is cached stays true.

Source: token-level intersection, Timor et al., Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies (arXiv:2502.05202), section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass

import torch

from paceline.cache.base import KVCache
from paceline.models.base import LanguageModel, Scores
from paceline.models.pieces import Pieces, translated_specials
from paceline.sequence import Sequence
from paceline.step import Feed, Segment, Step, Verdict
from paceline.tree import DraftTree, Proposal


class Translation:
    """From the tokens of one tokenizer to those of another."""

    def __init__(self, ours: Pieces, theirs: Pieces) -> None:
        self._ours, self._theirs = ours, theirs
        self._spelled: dict[int, tuple[int, ...]] = {}
        shared = {token: theirs.tokens[data] for data, token in ours.tokens.items() if data in theirs.tokens}
        self.special = translated_specials(ours, theirs)
        self.columns = torch.full((len(ours.of),), -1, dtype=torch.int64)
        """int64 [V]: the token of the other vocabulary whose logit is this one's; -1 for none."""
        # what opens a text is read, and never drafted
        names = {other: name for name, other in theirs.special.items()}
        drafted = {
            token: other
            for token, other in self.special.items()
            if token == ours.roles.get("eos") or names.get(other) == ours.names.get(token)
        }
        for token, other in {**shared, **drafted}.items():
            self.columns[token] = other
        self.shared = len(shared) / max(min(len(ours.tokens), len(theirs.tokens)), 1)
        """How much of the smaller vocabulary stands in the other one too."""

    def spelled(self, token: int, opens: bool = False) -> tuple[int, ...]:
        """What is read for a token, at least one. opens: whether it is the first of its text."""
        found = self._spelled.get(token)
        if found is None:
            found = self._spelled[token] = self._spell(token)
        lead = self._theirs.opening if opens else ()
        return found if found[: len(lead)] == lead else (*lead, *found)

    def _spell(self, token: int) -> tuple[int, ...]:
        ours, theirs = self._ours, self._theirs
        if token in self.special:
            return (self.special[token],)
        data = ours.of[token] or ours.names.get(token, "").encode()
        if data in theirs.tokens:
            return (theirs.tokens[data],)
        # a row of padding is no text at all, but something has to stand in its place
        return tuple(theirs.spelled(data)) or (theirs.roles.get("unk", 0),)


@dataclass(frozen=True)
class _InnerStep:
    """A step in the model's own tokens.

    rows: which of its wanted rows are those wanted of the step. places: per segment, per node the nodes that spell it. lengths:
    per segment, per token of its chain, how many tokens spell it.
    """

    step: Step
    rows: list[int]
    places: list[list[list[int]]]
    lengths: list[list[int]]


class TranslatedCache(KVCache):
    """A cache in tokens of the target around one in tokens of the model: what each of the target's took of the other's."""

    def __init__(self, inner: KVCache, translation: Translation) -> None:
        self.inner, self.branching, self._translation = inner, inner.branching, translation
        self._ends: dict[int, list[int]] = {}
        """Per sequence, per token held, the tokens held inside up to its end."""
        self._staged: tuple[Step, _InnerStep] | None = None

    def length(self, key: int) -> int:
        return len(self._ends.get(key, ()))

    def size(self, sequence: Sequence) -> int:
        """Tokens that the whole text takes inside."""
        held = self._ends.get(sequence.key, [])
        rest = enumerate(sequence.tokens[len(held) :], len(held))
        return (held[-1] if held else 0) + sum(len(self._translation.spelled(token, at == 0)) for at, token in rest)

    def inner_step(self, step: Step) -> _InnerStep:
        """A staged step as the model reads it. Raises ValueError for one that is not staged."""
        if self._staged is None or self._staged[0] is not step:
            raise ValueError("the step is not the one that is staged")
        return self._staged[1]

    def stage(self, step: Step) -> None:
        feeds, rows, places, lengths, wanted = [], [], [], [], 0
        for segment in step.segments:
            chain = [self._translation.spelled(t, at == 0) for at, t in enumerate(_fed(step, segment), segment.start)]
            tokens = tuple(token for spelled in chain for token in spelled)
            tree, place = self._inner_tree(segment.tree, tokens[-1])
            # node 0 of a tree is its root, the last token of the chain
            rows += [wanted + nodes[-1] for nodes in place]
            wanted += len(tree) if tree else 0
            feeds.append(Feed(segment.sequence, self.inner.length(segment.sequence.key), tokens, tree))
            places.append(place)
            lengths.append([len(spelled) for spelled in chain])
        inner_step = _InnerStep(Step.of(feeds), rows, places, lengths)
        self.inner.stage(inner_step.step)
        self._staged = step, inner_step

    def _inner_tree(self, tree: DraftTree | None, root: int) -> tuple[DraftTree | None, list[list[int]]]:
        if tree is None:
            return None, []
        tokens, parents, places = [root], [-1], [[0]]
        for node in range(1, len(tree)):
            above, place = places[tree.parents[node]][-1], []
            for token in self._translation.spelled(tree.tokens[node]):
                place.append(len(tokens))
                tokens.append(token)
                parents.append(above)
                above = place[-1]
            places.append(place)
        # two tokens may be spelled alike as far as they go
        return DraftTree(tuple(tokens), tuple(parents), Proposal.IID), places

    def commit(self, verdicts: Many[Verdict]) -> None:
        if self._staged is None:
            raise ValueError("nothing is staged")
        (step, inner_step), self._staged = self._staged, None
        inside = []
        for verdict, place in zip(verdicts, inner_step.places, strict=True):
            path = tuple(node for one in verdict.kept for node in place[one])
            # a cache keeps all but the last token emitted
            inside.append(Verdict(path, (*path, 0), len(path)))
        self.inner.commit(inside)
        for segment, verdict, place, lengths in zip(step.segments, verdicts, inner_step.places, inner_step.lengths, strict=True):
            ends = self._ends.setdefault(segment.sequence.key, [])
            for taken in (*lengths, *(len(place[node]) for node in verdict.kept)):
                ends.append((ends[-1] if ends else 0) + taken)
            self._settle(segment.sequence.key)

    def truncate(self, key: int, length: int) -> None:
        ends = self._ends.get(key)
        if ends is not None and length < len(ends):
            del ends[length:]
            self._settle(key)

    def _settle(self, key: int) -> None:
        """Hold inside what whole tokens take: some caches fall back further than they are asked to."""
        ends = self._ends[key]
        while self.inner.length(key) != (ends[-1] if ends else 0):
            if ends and ends[-1] > self.inner.length(key):
                ends.pop()
            else:
                self.inner.truncate(key, ends[-1] if ends else 0)

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        ends = self._ends[new_key] = list(self._ends.get(key, ()))
        if length is not None:
            del ends[length:]
        self.inner.fork(key, new_key, ends[-1] if ends else 0)
        self._settle(new_key)

    def move(self, key: int, new_key: int) -> None:
        self._ends[new_key] = self._ends.pop(key, [])
        self.inner.move(key, new_key)

    def shrink(self, key: int) -> None:
        self.inner.shrink(key)

    def release(self, key: int) -> None:
        self.inner.release(key)
        self._ends.pop(key, None)

    @property
    def held_bytes(self) -> int:
        return self.inner.held_bytes


def _fed(step: Step, segment: Segment) -> tuple[int, ...]:
    """The tokens of a segment's chain."""
    return step.tokens[segment.low : segment.low + segment.chain]


class TranslatedModel(LanguageModel):
    """inner: a model with a tokenizer of its own. translation: from the target's tokens to those."""

    def __init__(self, inner: LanguageModel, translation: Translation) -> None:
        self._inner, self._translation = inner, translation
        self.name, self.weights, self.weights_bytes = inner.name, inner.weights, inner.weights_bytes
        self.vocab_size = len(translation.columns)
        self.context_length, self.branching = inner.context_length, inner.branching
        self.prefill_chunk = inner.prefill_chunk
        self.threads_of_its_own, self.returns_early = inner.threads_of_its_own, inner.returns_early
        ends = {other: token for token, other in translation.special.items()}
        self.eos_token_ids = frozenset(ends[token] for token in inner.eos_token_ids & ends.keys())
        self._missing = translation.columns < 0
        self._columns = translation.columns.masked_fill(self._missing, 0)

    def forget(self) -> None:
        self._inner.forget()

    def settle(self, key: int) -> None:
        self._inner.settle(key)

    def new_cache(self) -> TranslatedCache:
        return TranslatedCache(self._inner.new_cache(), self._translation)

    def score(self, step: Step, cache: TranslatedCache, taps: Iterable[int] = ()) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        inner_step = cache.inner_step(step)
        scores = self._inner.score(inner_step.step, cache.inner, taps)
        device = scores.logits.device
        if self._columns.device != device:
            # once: a copy to a GPU waits for it
            self._columns, self._missing = self._columns.to(device), self._missing.to(device)
        with self.undisturbed(max(self.vocab_size, self._inner.vocab_size)):
            logits = scores.logits[inner_step.rows].index_select(1, self._columns)
            logits.masked_fill_(self._missing, -torch.inf)
        return Scores(logits, {layer: hidden[inner_step.rows] for layer, hidden in scores.taps.items()})

    def room(self, sequence: Sequence, cache: TranslatedCache) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        # what is drafted is one token inside as well
        return self.context_length - cache.size(sequence) + 1
