"""Prompt lookup: what followed the last few tokens when they stood in the text before.

The whole committed text, prompt and answer, is indexed as it grows; the longest match wins, the most recent first, and several
continuations of it make a tree.

Source: Saxena, Prompt Lookup Decoding (2023); Yang et al., Inference with Reference (arXiv:2304.04487), section 3.
Proposals: POINT
Taps: none
Branching: TREE
Trained: no
Cost: one dictionary look-up per match length and new token, whatever the context length
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence as Many
from itertools import islice
from sys import getsizeof
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.drafters.base import Drafter, Surroundings
from paceline.sequence import Sequence
from paceline.tree import Budget, DraftTree, Proposal


class Options(BaseModel):
    """max, min: longest and shortest match, in tokens. matches: continuations that make the tree. depth: tokens of each."""

    model_config = ConfigDict(extra="forbid")

    max: Annotated[int, Field(ge=1, le=32)] = 4
    min: Annotated[int, Field(ge=1, le=32)] = 2
    matches: Annotated[int, Field(ge=1, le=16)] = 2
    depth: Annotated[int, Field(ge=1, le=64)] = 6

    @model_validator(mode="after")
    def _ordered(self) -> Options:
        if self.min > self.max:
            raise ValueError("min must not exceed max")
        return self


_LOOKED_AT = 16
"""Matches looked at per step, the latest ones: bounds the work on a text that says one thing over and over."""


class _Index:
    """Where every n-gram of one sequence ended last, and, per such end, where the same n-gram had ended before.

    Grown token by token, so a step costs what it adds; it remembers the tokens it was grown from, so it can be cut back too.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.lengths = range(shortest, longest + 1)
        self.tokens = array("i")
        self.last: dict[tuple[int, ...], int] = {}
        self.before = {n: array("i", [0]) for n in self.lengths}
        """n -> per end its predecessor; 0 for none."""

    def grow(self, tokens: list[int]) -> None:
        """Take in what is new but for the last token: an n-gram is indexed once something follows it."""
        last = self.last
        for end in range(len(self.tokens) + 1, len(tokens)):
            self.tokens.append(tokens[end - 1])
            for n, before in self.before.items():
                ngram = tuple(tokens[end - n : end]) if n <= end else ()
                before.append(last.get(ngram, 0))
                if ngram:
                    last[ngram] = end

    def truncate(self, size: int) -> None:
        """Keep what `size` tokens have told, the last of them being followed by nothing yet."""
        while len(self.tokens) > max(size - 1, 0):
            end = len(self.tokens)
            for n in self.lengths:
                earlier = self.before[n].pop()
                if earlier:
                    self.last[tuple(self.tokens[end - n :])] = earlier
                elif n <= end:
                    del self.last[tuple(self.tokens[end - n :])]
            self.tokens.pop()

    def ends(self, ngram: tuple[int, ...]) -> Iterator[int]:
        """Where this n-gram ended, the latest first."""
        end = self.last.get(ngram, 0)
        while end:
            yield end
            end = self.before[len(ngram)][end]

    def copy(self) -> _Index:
        other = _Index(self.lengths[0], self.lengths[-1])
        other.tokens, other.last = self.tokens[:], dict(self.last)
        other.before = {n: ends[:] for n, ends in self.before.items()}
        return other

    @property
    def held_bytes(self) -> int:
        # a tuple of n references with its header and collector's links, and the integer it leads to
        ngrams = sum(56 + 8 * n + 32 for n in self.lengths) / len(self.lengths) * len(self.last)
        return int(getsizeof(self.last) + ngrams + self.tokens.itemsize * len(self.tokens) * (1 + len(self.lengths)))


class NgramDrafter(Drafter):
    name = "ngram"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, options: Options) -> None:
        self.options = options
        self.budget = Budget(nodes=options.depth * options.matches, depth=options.depth)
        self._indices: dict[int, _Index] = {}

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        return [self._one(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        index = self._indices.get(sequence.key)
        if index is None:
            index = self._indices[sequence.key] = _Index(self.options.min, self.options.max)
        tokens = sequence.tokens
        index.grow(tokens)
        depth = min(budget.depth, self.options.depth)
        paths: list[list[int]] = []
        for n in reversed(index.lengths):
            if len(tokens) >= n and depth:
                paths = self._continuations(tokens, index.ends(tuple(tokens[-n:])), depth)
            if paths:
                break
        return DraftTree.of_paths(sequence.root, paths, self.name, budget.nodes)

    def _continuations(self, tokens: list[int], ends: Iterator[int], depth: int) -> list[list[int]]:
        """Up to `matches` different ones, whole ones first, else the latest: in a text that repeats itself closely the
        latest match has hardly a continuation yet."""
        paths: list[list[int]] = []
        whole = 0
        for end in islice(ends, _LOOKED_AT):
            path = tokens[end : end + depth]
            if path not in paths:
                paths.append(path)
                whole += len(path) == depth
                if whole == self.options.matches:
                    break
        paths.sort(key=len, reverse=True)
        return paths[: self.options.matches]

    def truncate(self, key: int, length: int) -> None:
        if key in self._indices:
            self._indices[key].truncate(length)

    def fork(self, key: int, new_key: int) -> None:
        if key in self._indices:
            self._indices[new_key] = self._indices[key].copy()

    def release(self, key: int) -> None:
        self._indices.pop(key, None)

    @property
    def held_bytes(self) -> int:
        return sum(index.held_bytes for index in self._indices.values())


def build(options: Options, surroundings: Surroundings) -> NgramDrafter:
    return NgramDrafter(options)
