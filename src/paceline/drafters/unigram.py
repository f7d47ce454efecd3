"""The most frequent tokens, regardless of context, counted in a text file or, without one, in the request's own text.

The cheapest drafter, and the lower bound for comparing others.

Source: Leviathan et al. (arXiv:2211.17192), sections 3.6 and 4.2 (n-gram models as approximations at negligible cost).
Proposals: POINT
Taps: none
Branching: REPLAY, or TREE with width above 1
Trained: no (counted)
Cost: a few microseconds per step
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget
from paceline.drafters.base import StatefulDrafter, Surroundings
from paceline.lookups.counts import Counts, likeliest
from paceline.lookups.textfile import tokens_of_file
from paceline.noise import told_apart
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """file: the text to count; if left out, the request's own. depth: levels drafted. width: tokens tried after each node; the
    tree has at most depth times width nodes."""

    model_config = ConfigDict(extra="forbid")

    file: Annotated[str, Field(min_length=1)] | None = None
    depth: Annotated[int, Field(ge=1, le=16)] = 1
    width: Annotated[int, Field(ge=1, le=16)] = 1


_UNSEEN = 8.0
"""Observations that all tokens never seen count for together."""


class UnigramDrafter(StatefulDrafter[Counts]):
    """shared: the counts of a file; None to count every request's own text."""

    name = "unigram"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, options: Options, shared: Counts | None = None) -> None:
        super().__init__()
        self.options, self._shared = options, shared
        self.budget = Budget(nodes=options.depth * options.width, depth=options.depth)
        self.trees_by = f"width={options.width}" if options.width > 1 else ""

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        counts = self._shared if self._shared is not None else self._grown(sequence)
        total = counts.total(0) + _UNSEEN
        found = [(token, count / total) for token, count in counts.best(0)]
        return likeliest(sequence.root, lambda token: found, self.name, budget.within(self.budget))

    def _grown(self, sequence: Sequence) -> Counts:
        """The counts of all of this request's text."""
        counts = self._state(sequence)
        for token in sequence.tokens[counts.total(0) :]:
            counts.add(0, token)
        return counts

    def _cut(self, state: Counts, length: int) -> bool:
        return state.take_back(max(state.total(0) - length, 0))

    def _begun(self, sequence: Sequence) -> Counts:
        return Counts(self.options.width)


def build(options: Options, surroundings: Surroundings) -> UnigramDrafter:
    """Raises SpecError where the file cannot be read."""
    if options.file is None:
        return UnigramDrafter(options)
    tokens = np.asarray(tokens_of_file(options.file, surroundings.tokenizer.encode, surroundings.target.vocab_size))
    drafter = UnigramDrafter(options, Counts.of_text(np.zeros_like(tokens), tokens, options.width))
    drafter.read_texts = told_apart(tokens)
    return drafter
