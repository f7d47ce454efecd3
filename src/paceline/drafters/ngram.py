"""Prompt lookup: what followed the last few tokens when they stood in the text before.

The whole committed text, prompt and answer, is indexed as it grows; the longest match wins, the most recent first, and several
continuations of it make a tree.

Source: Saxena, Prompt Lookup Decoding (2023); Yang et al., Inference with Reference (arXiv:2304.04487), section 3.
Proposals: POINT
Taps: none
Branching: TREE
Trained: no
Cost: one dictionary look-up per match length and step, whatever the context length
"""

from __future__ import annotations

from collections.abc import Sequence as Many
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
    """Where every n-gram of one sequence ends; grown token by token, so a step costs what it adds."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.lengths = range(shortest, longest + 1)
        self.ends: dict[tuple[int, ...], list[int]] = {}
        self.indexed = 0

    def grow(self, tokens: list[int]) -> None:
        # the n-gram at the very end of the text is the question, not an answer: it is indexed once something follows it
        for end in range(self.indexed + 1, len(tokens)):
            for n in self.lengths:
                if n <= end:
                    self.ends.setdefault(tuple(tokens[end - n : end]), []).append(end)
        self.indexed = max(self.indexed, len(tokens) - 1)


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
            for end in reversed(index.ends.get(tuple(tokens[-n:]), ())[-_LOOKED_AT:]):
                path = tokens[end : end + depth]
                if path and path not in paths:
                    paths.append(path)
            if paths:
                break
        # in a text that repeats itself closely the latest match has hardly a continuation yet: longer ones come first
        paths.sort(key=len, reverse=True)
        return DraftTree.of_paths(sequence.root, paths[: self.options.matches], self.name, budget.nodes)

    def truncate(self, key: int, length: int) -> None:
        self._indices.pop(key, None)

    def release(self, key: int) -> None:
        self._indices.pop(key, None)

    @property
    def held_bytes(self) -> int:
        # a list entry of 8 bytes and its share of a key per indexed n-gram
        return sum(index.indexed * len(index.lengths) * 80 for index in self._indices.values())


def build(options: Options, surroundings: Surroundings) -> NgramDrafter:
    return NgramDrafter(options)
