"""Prompt lookup: what followed the last few tokens wherever they stood in the text before.

The whole committed text, prompt and answer, is indexed as it grows. Of the places where the text's end stood before, six vote for
what followed them: those of the longest matches first, of equally long ones the latest. A vote weighs the more the longer its
match and the later its place. Where six or more places share a match, what most of all of them were followed by has a vote as
well, which weighs as much as the places by which it leads would: what was met often outweighs what was only met of late. What
the votes make likely becomes a tree. A place near the end is read on as if the text repeated itself. A longer match drafts
further, for confidence falls more slowly along it.

Matches are looked up by their last 1, 2, 3 and 6 tokens and measured to their true length, up to 12: a long match is passed over
only for six later ones of at least 6 tokens. `max=12` looks for still longer ones first.

Source: Saxena, Prompt Lookup Decoding (2023); Yang et al., Inference with Reference (arXiv:2304.04487), section 3.
Proposals: POINT
Taps: none
Branching: REPLAY; its trees are cut to their first chain where the target does less than TREE
Trained: no
Cost: one dictionary look-up per length looked up and new token, and one per node, whatever the context length
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import accumulate, islice
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.drafters.base import StatefulDrafter, Surroundings
from paceline.occurrences import Occurrences
from paceline.sequence import Sequence
from paceline.tree import Budget, DraftTree, Proposal


class Options(BaseModel):
    """max, min: most and fewest tokens by which a match is looked up, between them those of `occurrences.indexed`. matches: most
    continuations in a tree. depth, nodes: tokens of the longest, and of all of them together."""

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


_LOOKED_AT = 6
"""Places that vote, and places looked at per match length: bounds the work on a text that says one thing over and over."""
_LIKELY = (0.0, 0.3, 0.55, 0.68, 0.75, 0.8, 0.86, 0.88, 0.92, 0.93, 0.94, 0.95, 0.98)
"""By length of the match, how often the next token was what followed it, measured over texts of the embedded model."""
_LONGEST = len(_LIKELY) - 1
_LENGTH_COUNTS = tuple(3.0 ** min(length, 8) for length in range(_LONGEST + 1))
"""What a vote weighs by the length of its match."""
_AGE_COUNTS = tuple(0.85**rank for rank in range(_LOOKED_AT))
"""What a vote weighs by how many places stand before it."""
_LEAD_COUNTS = tuple(accumulate(_AGE_COUNTS, initial=0.0))
"""What the vote of a majority weighs by how many places it leads: as many places that are looked at."""
_WORTH = 0.08
"""A node is drafted if it comes true, its ancestors included, at least so often; about what a row costs beside a forward."""

_Vote = tuple[float, int, int]
"""Weight, length of the match, and the place behind it."""


class NgramDrafter(StatefulDrafter[Occurrences]):
    name = "ngram"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.budget = Budget(nodes=options.nodes, depth=min(options.depth, options.nodes))

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        text = self._state(sequence)
        text.grow(sequence.tokens)
        votes = self._votes(text, sequence.tokens)
        return self._tree(sequence.tokens, votes, budget.within(self.budget)) if votes else DraftTree.root(sequence.root)

    def _votes(self, text: Occurrences, tokens: list[int]) -> list[_Vote]:
        """The places where the longest matches ended, the latest first, then those of shorter ones; at last where most agree."""
        found: dict[int, int] = {}
        most: list[_Vote] = []
        for n in reversed(text.lengths):
            ends = list(islice(text.ends(tokens, n), _LOOKED_AT))
            for end in ends:
                if end not in found:
                    found[end] = _matched(tokens, end, n)
            if len(ends) == _LOOKED_AT:
                place, lead = text.agreed(tokens, n)
                length = min(n, _LONGEST)
                most = [(_LENGTH_COUNTS[length] * _LEAD_COUNTS[min(lead, _LOOKED_AT)], length, place)] if lead else []
                break
        ranked = sorted(((length, end) for end, length in found.items()), reverse=True)
        return [
            *((_LENGTH_COUNTS[length] * age, length, end) for (length, end), age in zip(ranked, _AGE_COUNTS, strict=False)),
            *most,
        ]

    def _tree(self, tokens: list[int], votes: list[_Vote], budget: Budget) -> DraftTree:
        """What the votes make likely, the likeliest node first."""
        size, paths = len(tokens), self.options.matches
        drafted, parents, held, leaf = [tokens[-1]], [-1], [1.0], [True]
        # minus the chance with all ancestors, a number that keeps equals in order, parent, depth, token, confidence, votes
        waiting: list[tuple[float, int, int, int, int, float, list[_Vote]]] = []
        node, depth, chance, pushed = 0, 0, 1.0, 0
        while True:
            if depth < budget.depth and held[node] >= budget.floor:
                # read on behind the end of the text as if it repeated itself from the place on
                split: dict[int, list[_Vote]] = {}
                for vote in votes:
                    split.setdefault(tokens[vote[2] + depth % (size - vote[2])], []).append(vote)
                best = _LIKELY[min(votes[0][1] + depth, _LONGEST)]
                total = sum([vote[0] for vote in votes]) if len(split) > 1 else 0.0
                for token, behind in split.items():
                    confidence = best * sum([vote[0] for vote in behind]) / total if total else best
                    if chance * confidence >= _WORTH:
                        pushed += 1
                        heappush(waiting, (-chance * confidence, pushed, node, depth + 1, token, confidence, behind))
            while waiting and paths <= 1 and not leaf[waiting[0][2]]:
                heappop(waiting)
            if not waiting or len(drafted) > budget.nodes:
                break
            chance, _, parent, depth, token, confidence, votes = heappop(waiting)
            paths -= not leaf[parent]
            leaf[parent], chance, node = False, -chance, len(drafted)
            drafted.append(token)
            parents.append(parent)
            held.append(confidence)
            leaf.append(True)
        return DraftTree.grown(self.name, drafted, parents, held)

    def _begun(self, sequence: Sequence) -> Occurrences:
        return Occurrences(self.options.min, self.options.max)

    def truncate(self, key: int, length: int) -> None:
        if key in self._states:
            self._states[key].truncate(length)

    def fork(self, key: int, new_key: int) -> None:
        if key in self._states:
            self._states[new_key] = self._states[key].copy()


def _matched(tokens: list[int], end: int, known: int) -> int:
    """How many tokens before `end` are the last ones of the text, up to the most that make a difference; `known` of them are."""
    length, longest, offset = min(known, _LONGEST), min(_LONGEST, end), len(tokens) - end
    while length < longest and tokens[end - length - 1] == tokens[end + offset - length - 1]:
        length += 1
    return length


def build(options: Options, surroundings: Surroundings) -> NgramDrafter:
    return NgramDrafter(options)
