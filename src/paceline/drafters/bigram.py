"""The most frequent successors of the last token, counted in a text file or, without one, in the request's own text.

If fewer than `width` successors of a token were seen, the most frequent tokens of the whole text fill the remaining places. All
unseen successors together count as one observation, divided among them in proportion to their frequency in the text.

Source: Leviathan et al. (arXiv:2211.17192), sections 3.6 and 4.2 (bigram model). Smoothing by a Dirichlet prior proportional to
the unigrams: MacKay and Peto, A Hierarchical Dirichlet Language Model (1995); here it weighs one observation, and only unseen
successors share it.
Proposals: POINT
Taps: none
Branching: REPLAY, or TREE with width above 1
Trained: no (counted)
Cost: a few microseconds per step and one per node
"""

from __future__ import annotations

from collections.abc import Sequence as Many
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
    """file: the text to count; if left out, the request's own. depth: levels drafted. width: successors tried per token; the
    tree has at most depth times width nodes."""

    model_config = ConfigDict(extra="forbid")

    file: Annotated[str, Field(min_length=1)] | None = None
    depth: Annotated[int, Field(ge=1, le=16)] = 3
    width: Annotated[int, Field(ge=1, le=16)] = 1


_UNSEEN = 1.0
"""Observations that all tokens never seen behind another count for together, divided by how common each is in the text."""
_WORTH = 0.05
"""A node is drafted if it is right, its ancestors included, with at least this probability."""


class _Text:
    """Counts of one text: of single tokens and of pairs."""

    def __init__(self, singles: Counts, pairs: Counts) -> None:
        self._singles, self._pairs = singles, pairs

    def grow(self, tokens: Many[int]) -> None:
        seen = self._singles.total(0)
        for at in range(seen, len(tokens)):
            self._singles.add(0, tokens[at])
            if at:
                self._pairs.add(tokens[at - 1], tokens[at])

    def cut(self, length: int) -> bool:
        """Remove all but the first `length` tokens from the counts; False where the text has to be counted anew."""
        behind = max(self._singles.total(0) - length, 0)
        # the first token makes no pair: where no token is left there is one pair too few to take back, and False is returned
        return self._singles.take_back(behind) and self._pairs.take_back(behind)

    def successors(self, token: int, width: int) -> list[tuple[int, float]]:
        """Up to `width` tokens that may follow, each with its probability."""
        total = self._pairs.total(token) + _UNSEEN
        found = {follower: count / total for follower, count in self._pairs.best(token)}
        if len(found) < width:
            share = _UNSEEN / total / (self._singles.total(0) + _UNSEEN)
            for follower, count in self._singles.best(0):
                found.setdefault(follower, count * share)
        return list(found.items())[:width]

    @property
    def held_bytes(self) -> int:
        return self._singles.held_bytes + self._pairs.held_bytes


class BigramDrafter(StatefulDrafter[_Text]):
    """shared: the counts of a file; None to count every request's own text."""

    name = "bigram"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, options: Options, shared: _Text | None = None) -> None:
        super().__init__()
        self.options, self._shared = options, shared
        self.budget = Budget(nodes=options.depth * options.width, depth=options.depth)
        self.trees_by = f"width={options.width}" if options.width > 1 else ""

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        text, width = self._shared if self._shared is not None else self._grown(sequence), self.options.width
        return likeliest(
            sequence.root, lambda token: text.successors(token, width), self.name, budget.within(self.budget), _WORTH
        )

    def _grown(self, sequence: Sequence) -> _Text:
        """The counts of all of this request's text."""
        text = self._state(sequence)
        text.grow(sequence.tokens)
        return text

    def _cut(self, state: _Text, length: int) -> bool:
        return state.cut(length)

    def _begun(self, sequence: Sequence) -> _Text:
        return _Text(Counts(self.options.width), Counts(self.options.width))


def build(options: Options, surroundings: Surroundings) -> BigramDrafter:
    """Raises SpecError where the file cannot be read."""
    if options.file is None:
        return BigramDrafter(options)
    tokens = np.asarray(tokens_of_file(options.file, surroundings.tokenizer.encode, surroundings.target.vocab_size))
    singles, pairs = (
        Counts.of_text(np.zeros_like(tokens), tokens, options.width),
        Counts.of_text(tokens[:-1], tokens[1:], options.width),
    )
    drafter = BigramDrafter(options, _Text(singles, pairs))
    drafter.read_texts = told_apart(tokens)
    return drafter
