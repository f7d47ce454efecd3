"""Prompt lookup: what followed the last few tokens wherever they stood in the text before.

The whole committed text, prompt and answer, is indexed as it grows (`kernels/ngrams`). Of the places where the text's end stood
before, six vote for what followed them: those of the longest matches first, of equally long ones the latest. A vote weighs the
more the longer its match and the later its place. Where six or more places share a match, what most of all of them were followed
by has a vote as well, which weighs as much as the places by which it leads would: what was met often outweighs what was only met
of late. What the votes make likely becomes a tree. A place near the end is read on as if the text repeated itself. A longer match
drafts further, for confidence falls more slowly along it.

Matches are looked up by their last 1, 2, 3 and 6 tokens and measured to their true length, up to 12: a long match is passed over
only for six later ones of at least 6 tokens. `max=12` looks for still longer ones first.

Source: Saxena, Prompt Lookup Decoding (2023); Yang et al., Inference with Reference (arXiv:2304.04487), section 3.
Proposals: POINT
Taps: none
Branching: REPLAY; its trees are cut to their first chain where the target does less than TREE
Trained: no
Cost: one compiled call, some ten microseconds; one look-up per length looked up and new token, whatever the context length
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.budget import Budget
from paceline.drafters.base import StatefulDrafter, Surroundings
from paceline.kernels.compiled import ready
from paceline.kernels.ngrams.occurrences import Occurrences
from paceline.kernels.ngrams.votes import KERNELS, LookUp
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """max, min: most and fewest tokens of the n-grams that are indexed; between them every length up to 3, then twice the one
    before. matches: most continuations in a tree. depth, nodes: tokens of the longest, and of all of them together."""

    model_config = ConfigDict(extra="forbid")

    max: Annotated[int, Field(ge=1, le=32)] = 6
    min: Annotated[int, Field(ge=1, le=32)] = 1
    matches: Annotated[int, Field(ge=1, le=16)] = 3
    depth: Annotated[int, Field(ge=1, le=64)] = 16
    nodes: Annotated[int, Field(ge=1, le=256)] = 16

    @model_validator(mode="after")
    def _ordered(self) -> Options:
        if self.min > self.max:
            raise ValueError("min must not exceed max")
        return self


class NgramDrafter(StatefulDrafter[Occurrences]):
    name = "ngram"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.budget = Budget(nodes=options.nodes, depth=min(options.depth, options.nodes))
        # before anything is timed
        ready(KERNELS)
        self._look_up = LookUp(options.nodes)

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        budget, key = budget.within(self.budget), sequence.key
        # whoever is interrupted while tables grow begins anew: they and the size would not agree
        text = self._states.pop(key, None) or self._begun(sequence)
        found = self._look_up(text, sequence.tokens, budget.nodes, budget.depth, budget.floor, self.options.matches)
        self._states[key] = text
        return DraftTree.grown(self.name, *found or ([sequence.root], [-1], [1.0]))

    def _begun(self, sequence: Sequence) -> Occurrences:
        return Occurrences(self.options.min, self.options.max)

    def _cut(self, state: Occurrences, length: int) -> bool:
        state.truncate(length)
        return True

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        # of a beginning that is short beside the text all is taken in again sooner than it is copied and cut back
        if key in self._states and (length is None or 2 * length >= self._states[key].size):
            self._states[new_key] = self._states[key].copy()

    def move(self, key: int, new_key: int, length: int) -> None:
        if key in self._states:
            self._states[new_key] = self._states.pop(key)


def build(options: Options, surroundings: Surroundings) -> NgramDrafter:
    return NgramDrafter(options)
