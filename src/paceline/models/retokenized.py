"""Drafts as text: a model with another tokenizer continues in its own tokens, and its text is re-tokenized for the target.

A shadow of every sequence is kept in the model's tokens. Appended text may change how the text before it is tokenized, so the
last tokens before a seam are tokenized anew together with the text after it, in both directions.

Source: string-level exact match, Timor et al. (arXiv:2502.05202), section 3; the window before the seam is that of universal
assisted generation (Gante et al., 2024).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from math import ceil

from paceline.budget import Budget
from paceline.growth import Growth
from paceline.models.base import LanguageModel
from paceline.models.pieces import Pieces, translated_specials
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import caterpillar

_LOOKBEHIND = 10
"""Tokens before a seam that are tokenized anew; the start of a word is looked for among as many tokens before these."""
_MOST_TO_ONE = 4.0
"""Most tokens of the model drafted per token of the target."""
_MORE = 1.25
"""Factor on the estimated number of the model's tokens for a prefix of a text, when a fork copies only that prefix."""


@dataclass
class _Shadow:
    """One sequence in the model's own tokens.

    owner: the request. sequence: holds these tokens, for drafting. ends: per token, where its bytes end in the text. settled:
    tokens that no later text can change, up to the last special one. spans: per token of the target, where its bytes end in the
    text. cached: tokens in the model's cache, drafts included; the first `same` of these are the sequence's.
    """

    owner: Sequence
    sequence: Sequence
    ends: list[int]
    settled: int
    spans: list[int] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    cached: list[int] = field(default_factory=list)
    same: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens

    @property
    def taken(self) -> int:
        """Tokens of the target that it covers."""
        return len(self.spans)

    @property
    def ratio(self) -> float:
        """Tokens of the model per token of the target."""
        return min(max(len(self.tokens) / max(self.taken, 1), 1 / _MOST_TO_ONE), _MOST_TO_ONE)

    def end(self, count: int) -> int:
        """Where the first `count` tokens end in the text."""
        return self.ends[count - 1] if count else 0

    def cut(self, count: int) -> None:
        """Keep the first `count` tokens."""
        del self.tokens[count:], self.ends[count:]
        self.same = min(self.same, count)


class RetokenizedModel:
    """A model that drafts for a target with another tokenizer. own, target: the tokens of the model and of the target."""

    def __init__(self, model: LanguageModel, own: Pieces, target: Pieces) -> None:
        self._model, self._own, self._target = model, own, target
        self._special = translated_specials(target, own)
        self._back = {theirs: ours for ours, theirs in self._special.items()}
        self._cache = model.new_cache()
        self._shadows: dict[int, _Shadow] = {}
        self._forked: dict[int, list[int]] = {}
        """Cached tokens of forked sequences that have no shadow yet."""

    @property
    def measured_as(self) -> str:
        """That of the model."""
        return self._model.measured_as

    def suits(self, sequence: Sequence) -> bool:
        """Whether the model's context has room for a draft after this text, as far as its shadow goes."""
        shadow = self._shadows.get(sequence.key)
        return shadow is None or len(shadow.tokens) <= self._model.context_length

    def extend(self, sequences: Many[Sequence], budgets: Many[Budget], source: str) -> list[DraftTree]:
        """Per sequence a chain of the model's greedy choices, in tokens of the target and within the budget.

        It is shorter, down to empty, where the model's context ends or its text cannot be tokenized for the target.
        """
        asked = [(one, budget) for one, budget in zip(sequences, budgets, strict=True) if budget.some]
        brought = [(one, budget, self._brought_up(one)) for one, budget in asked]
        # a text without any token of the model cannot be continued
        asked = [(one, budget) for one, budget, shadow in brought if shadow.tokens]
        shadows = [shadow for _, _, shadow in brought if shadow.tokens]
        depths = [ceil(b.levels * shadow.ratio) for shadow, (_, b) in zip(shadows, asked, strict=True)]
        drafts = self._model.extend(
            [shadow.sequence for shadow in shadows],
            [Budget(depth, depth, budget.floor) for depth, (_, budget) in zip(depths, asked, strict=True)],
            self._cache,
            growth=Growth(Proposal.POINT, caterpillar(max(depths, default=0))),
            vocab_size=self._model.vocab_size,
            source=source,
        )
        found: dict[int, DraftTree] = {}
        for (sequence, budget), shadow, draft in zip(asked, shadows, drafts, strict=True):
            held = self._cache.length(sequence.key)
            known, text = len(shadow.cached), len(shadow.tokens)
            shadow.cached += shadow.tokens[known:held]
            shadow.cached += draft.tokens[1 + max(known - text, 0) : 1 + max(held - text, 0)]
            shadow.same = min(held, len(shadow.tokens))
            chain, confidences = self._read_back(sequence, draft)
            count = budget.levels
            found[sequence.key] = DraftTree.chain(sequence.root, chain[:count], source, confidences=confidences[:count])
        return [found.get(sequence.key, DraftTree.root(sequence.root)) for sequence in sequences]

    def _brought_up(self, sequence: Sequence) -> _Shadow:
        """The shadow of a sequence, brought up to date, with the cache truncated to the tokens that agree with it."""
        shadow = self._shadows.get(sequence.key)
        if shadow is None:
            # the model's EOS tokens end its drafts
            ends = self._model.eos_token_ids
            opening = Sequence(sequence.key, self._own.opening, SamplingParams(), 0, ends, tenant=sequence.tenant)
            count = len(self._own.opening)
            shadow = self._shadows[sequence.key] = _Shadow(
                sequence, opening, [0] * count, count, cached=self._forked.pop(sequence.key, [])
            )
        data, spans = bytearray(), []
        for token in sequence.tokens[shadow.taken :]:
            if token not in self._special:
                # a target may have more rows than the model whose tokens these are
                known = token < len(self._target.of)
                data += (self._target.of[token] or self._target.names.get(token, "").encode()) if known else b""
            else:
                self._write(shadow, data)
                self._close(shadow, self._special[token])
                data.clear()
            spans.append(len(shadow.text) + len(data))
        self._write(shadow, data)
        shadow.spans += spans
        tokens, cached = shadow.tokens, shadow.cached
        while shadow.same < min(len(tokens), len(cached)) and tokens[shadow.same] == cached[shadow.same]:
            shadow.same += 1
        self._cache.truncate(sequence.key, min(shadow.same, max(len(tokens) - 1, 0)))
        del cached[self._cache.length(sequence.key) :]
        return shadow

    def _write(self, shadow: _Shadow, data: bytearray) -> None:
        """Append text."""
        if data:
            shadow.text += data
            self._split_end(shadow)

    def _split_end(self, shadow: _Shadow) -> None:
        """Tokenize the end of the text that no token covers yet, together with the last tokens before it."""
        start = max(_seam(self._own, shadow.tokens), shadow.settled)
        tokens = self._own.spelled(bytes(shadow.text[shadow.end(start) :]), opens=start == shadow.settled)
        shadow.cut(start)
        # backwards from the end: an opening token may contain a space that is not in the text
        ends, end = [], len(shadow.text)
        for token in reversed(tokens):
            ends.append(end)
            end -= len(self._own.of[token])
        shadow.sequence.tokens += tokens
        shadow.ends += reversed(ends)

    def _close(self, shadow: _Shadow, special: int) -> None:
        """Append a special token, unless it is the one that opens every text."""
        if not (shadow.tokens == [special] and not shadow.text):
            shadow.tokens.append(special)
            shadow.ends.append(len(shadow.text))
        shadow.settled = len(shadow.tokens)

    def _read_back(self, sequence: Sequence, draft: DraftTree) -> tuple[list[int], list[float]]:
        """A draft as tokens of the target, and their confidences: the product over the model's tokens that begin in each."""
        own, target = self._own, self._target
        drafted = draft.tokens[1:]
        plain = next((at for at, token in enumerate(drafted) if not own.of[token]), len(drafted))
        data = _whole(own.bytes_of(drafted[:plain]))
        start = _seam(target, sequence.tokens)
        before = target.bytes_of(sequence.tokens[start:])
        tokens = target.spelled(before + data)
        seam = target.boundary(tokens, len(before))
        # if a token straddles the seam, the draft is tokenized alone
        chain = tokens[seam:] if seam is not None else target.spelled(data)
        confidences, at, taken = [], 0, 0
        starts = [len(own.bytes_of(drafted[:place])) for place in range(plain)]
        for token in chain:
            at, held = at + len(target.of[token]), 1.0
            while taken < plain and starts[taken] < at:
                taken += 1
                held *= draft.confidences[taken]
            confidences.append(held)
        if plain < len(drafted) and drafted[plain] in self._back and len(data) == len(own.bytes_of(drafted[:plain])):
            chain.append(self._back[drafted[plain]])
            confidences.append(draft.confidences[plain + 1])
        return chain, confidences

    def truncate(self, key: int, length: int) -> None:
        """Forget the tokens from `length` on; cached tokens stay valid as far as they agree with the rest."""
        # removed meanwhile: after an interrupt, the shadow is built anew
        shadow = self._shadows.pop(key, None)
        if shadow is not None:
            if length < shadow.taken:
                self._cut_back(shadow, length)
            self._shadows[key] = shadow

    def _cut_back(self, shadow: _Shadow, length: int) -> None:
        """Cut a shadow to the first `length` tokens of the target."""
        size = shadow.spans[length - 1] if length else 0
        if size > shadow.end(shadow.settled):
            shadow.cut(bisect_right(shadow.ends, size))
            del shadow.text[size:], shadow.spans[length:]
            # the remaining tokens depended on the text that followed
            self._split_end(shadow)
        else:
            # special tokens may be cut too: the whole text is tokenized anew
            shadow.settled = len(self._own.opening)
            shadow.cut(shadow.settled)
            shadow.text.clear()
            shadow.spans.clear()

    def fork(self, key: int, new_key: int, length: int) -> None:
        """Copy the cache to a new sequence, whose text is tokenized anew; cached tokens count as far as they agree with it.
        length: tokens of the target that both begin with."""
        shadow = self._shadows.get(key)
        # the source may itself be a fork that has no shadow yet
        cached = shadow.cached if shadow is not None else self._forked.get(key)
        if cached is not None:
            if shadow is not None and 2 * length < shadow.taken:
                # an estimate of the prefix in the model's tokens, and some more, which may not agree
                cached = cached[: int(_MORE * length * len(cached) / shadow.taken)]
            self._cache.fork(key, new_key, len(cached))
            self._forked[new_key] = list(cached)

    def forget(self) -> None:
        self._model.forget()

    def settle(self, key: int) -> None:
        """A sequence ended: bring its shadow up to date and pass on the finish reason, for components that learn from finished
        texts."""
        shadow = self._shadows.get(key)
        if shadow is not None and shadow.owner.finish_reason is not None:
            self._brought_up(shadow.owner)
            shadow.sequence.finish_reason = shadow.owner.finish_reason
        self._cache.shrink(key)
        self._model.settle(key)

    def release(self, key: int) -> None:
        self.settle(key)
        self._cache.release(key)
        self._shadows.pop(key, None)
        self._forked.pop(key, None)

    @property
    def held_bytes(self) -> int:
        texts = sum(len(one.text) for one in self._shadows.values())
        numbers = sum(2 * len(one.tokens) + len(one.spans) + len(one.cached) for one in self._shadows.values())
        return self._cache.held_bytes + texts + 8 * (numbers + sum(map(len, self._forked.values())))


def _seam(pieces: Pieces, tokens: Many[int]) -> int:
    """Index of the token from which a text is tokenized anew when more follows: after the last special token, if possible at the
    start of a word."""
    latest = max(len(tokens) - _LOOKBEHIND, 0)
    for at in reversed(range(max(latest - _LOOKBEHIND, 0), len(tokens))):
        if not pieces.of[tokens[at]]:
            return max(at + 1, latest)
        if at <= latest and pieces.of[tokens[at]][:1] == b" ":
            return at
    return latest


def _whole(data: bytes) -> bytes:
    """The data without an incomplete UTF-8 character at its end."""
    for back in range(1, min(len(data), 3) + 1):
        lead = data[-back]
        if lead >= 0xC0:
            return data[:-back] if back < 2 + (lead >= 0xE0) + (lead >= 0xF0) else data
        if lead < 0x80:
            return data
    return data
