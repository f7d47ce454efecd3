"""A draft model with another tokenizer: it reads and scores tokens of the target, and drafts like a model of its vocabulary.

Where a token of the target and one of the model stand for the same bytes, the model reads its own token in place of the target's,
and its logit counts for the target's token. Other target tokens it cannot draft; it reads them spelled out in several tokens of
its own. A token's spelling does not depend on its context, so cached keys and values stay valid.

Source: token-level intersection, Timor et al., Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies (arXiv:2502.05202), section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass

import torch

from paceline.cache.base import KVCache
from paceline.models.base import LanguageModel, Scores
from paceline.models.flat import sent
from paceline.models.pieces import Pieces, translated_specials
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
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
        # opening tokens such as BOS are read, and never drafted
        names = {other: name for name, other in theirs.special.items()}
        drafted = {
            token: other
            for token, other in self.special.items()
            if token == ours.roles.get("eos") or names.get(other) == ours.names.get(token)
        }
        for token, other in {**shared, **drafted}.items():
            self.columns[token] = other
        self.shared = len(shared) / max(min(len(ours.tokens), len(theirs.tokens)), 1)
        """Share of the smaller vocabulary that is in the other one too."""

    def spelled(self, token: int, opens: bool = False) -> tuple[int, ...]:
        """The model's tokens for a token of the target, at least one. opens: whether it is the first of its text."""
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
        # a padding token has no text, but needs at least one token
        return tuple(theirs.spelled(data)) or (theirs.roles.get("unk", 0),)


@dataclass(frozen=True)
class _InnerStep:
    """A step in the model's own tokens.

    rows: its wanted rows that correspond to the wanted rows of the outer step. places: per segment and node, the inner nodes that
    spell it. lengths: per segment and token of its chain, how many inner tokens spell it.
    """

    step: Step
    rows: list[int]
    places: list[list[list[int]]]
    lengths: list[list[int]]


class TranslatedCache(KVCache):
    """A cache counted in tokens of the target around one in tokens of the model, with a map between their lengths."""

    def __init__(self, inner: KVCache, translation: Translation) -> None:
        self.inner, self.branching, self._translation = inner, inner.branching, translation
        self._ends: dict[int, list[int]] = {}
        """Per sequence and cached token, the number of inner tokens up to its end."""
        self._staged: tuple[Step, _InnerStep] | None = None

    def length(self, key: int) -> int:
        return len(self._ends.get(key, ()))

    def size(self, sequence: Sequence) -> int:
        """Inner tokens of the whole text."""
        held = self._ends.get(sequence.key, [])
        rest = enumerate(sequence.tokens[len(held) :], len(held))
        return (held[-1] if held else 0) + sum(len(self._translation.spelled(token, at == 0)) for at, token in rest)

    def inner_step(self, step: Step) -> _InnerStep:
        """The staged step in the model's tokens. Raises ValueError if this step is not staged."""
        if self._staged is None or self._staged[0] is not step:
            raise ValueError("the step is not the one that is staged")
        return self._staged[1]

    def stage(self, step: Step) -> None:
        feeds, rows, places, lengths, wanted = [], [], [], [], 0
        for segment in step.segments:
            fed = step.tokens[segment.low : segment.low + segment.chain]
            chain = [self._translation.spelled(token, at == 0) for at, token in enumerate(fed, segment.start)]
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
        # IID: siblings may share inner tokens, since two spellings may begin alike
        return DraftTree(tuple(tokens), tuple(parents), Proposal.IID), places

    def commit(self, verdicts: Many[Verdict]) -> None:
        if self._staged is None:
            raise ValueError("nothing is staged")
        (step, inner_step), self._staged = self._staged, None
        inside = []
        for verdict, place in zip(verdicts, inner_step.places, strict=True):
            path = tuple(node for one in verdict.kept for node in place[one])
            # a cache never holds the last token that was emitted
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
        """Truncate the inner cache to the end of a whole outer token: some caches fall back further than they are asked to."""
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


class TranslatedModel(LanguageModel):
    """inner: a model with its own tokenizer. translation: from the target's tokens to the model's."""

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
        rows = sent(torch.tensor(inner_step.rows, dtype=torch.int64), device)
        if self._columns.device != device:
            # only once: a copy to a GPU waits for it
            self._columns, self._missing = self._columns.to(device), self._missing.to(device)
        with self.undisturbed(max(self.vocab_size, self._inner.vocab_size)):
            logits = scores.logits[rows].index_select(1, self._columns)
            logits.masked_fill_(self._missing, -torch.inf)
        return Scores(logits, {layer: hidden[rows] for layer, hidden in scores.taps.items()})

    def room(self, sequence: Sequence, cache: TranslatedCache) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        # every drafted token is a single inner token
        return self.context_length - cache.size(sequence) + 1
