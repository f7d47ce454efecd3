"""Prompt lookup: what followed earlier occurrences of the last few tokens in the text.

The whole committed text, prompt and answer, is indexed as it grows (`kernels/ngrams`). Six earlier occurrences of the text's
last tokens vote for the tokens that followed them: the longest matches first, and of equally long ones the latest. A vote weighs
more the longer its match is and the earlier it comes in this order. If six or more occurrences share a match, the winner of a
running majority vote over all of them gets an extra vote, with the weight of as many votes as its lead, at most six: so a
frequent continuation can outweigh a merely recent one. The likely continuations form a tree. An occurrence near the end of the
text is continued as if the text repeated itself. A longer match drafts deeper, because its confidence falls more slowly with
depth.

Matches are looked up by their last 1, 2, 3 and 6 tokens, and their true length is then measured, up to 12: a long match is
missed only if there are six later ones of at least 6 tokens. `max=12` looks for longer matches first.

Source: Saxena, Prompt Lookup Decoding (2023); Yang et al., Inference with Reference (arXiv:2304.04487), section 3.
Proposals: POINT
Taps: none
Branching: REPLAY; its trees are cut to their first chain if the target supports less than TREE
Trained: no
Cost: one compiled call, about ten microseconds; one lookup per indexed length and new token, regardless of context length
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.budget import Budget
from paceline.drafters.base import StatefulDrafter, Surroundings
from paceline.kernels.compiled import ready
from paceline.kernels.ngrams.continuations import KERNELS, ContinuationLookup
from paceline.kernels.ngrams.index import NgramIndex
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """max, min: length of the longest and of the shortest n-grams that are indexed; in between, every length up to 3, then each
    twice the previous. matches: most continuations in a tree. depth, nodes: most tokens in the longest continuation, and in all
    together."""

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


class NgramDrafter(StatefulDrafter[NgramIndex]):
    name = "ngram"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.budget = Budget(nodes=options.nodes, depth=min(options.depth, options.nodes))
        # compiled before anything is timed
        ready(KERNELS)
        self._look_up = ContinuationLookup(options.nodes)

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        budget, key = budget.within(self.budget), sequence.key
        # removed meanwhile: after an interrupt while tables grow, they would not agree with the size
        text = self._states.pop(key, None) or self._begun(sequence)
        found = self._look_up(text, sequence.tokens, budget.nodes, budget.depth, budget.floor, self.options.matches)
        self._states[key] = text
        return DraftTree.grown(self.name, *found or ([sequence.root], [-1], [1.0]))

    def _begun(self, sequence: Sequence) -> NgramIndex:
        return NgramIndex(self.options.min, self.options.max)

    def _cut(self, state: NgramIndex, length: int) -> bool:
        state.truncate(length)
        return True

    def fork(self, key: int, new_key: int, length: int) -> None:
        # where less than half is wanted, indexing it anew takes less time than copying all and cutting it back
        if key in self._states and 2 * length >= self._states[key].size:
            self._states[new_key] = self._states[key].copy()

    def move(self, key: int, new_key: int, length: int) -> None:
        if key in self._states:
            self._states[new_key] = self._states.pop(key)


def build(options: Options, surroundings: Surroundings) -> NgramDrafter:
    return NgramDrafter(options)
