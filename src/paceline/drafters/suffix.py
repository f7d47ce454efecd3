"""Suffix decoding: what followed earlier occurrences of the text's longest suffixes, here and in the tenant's past answers.

Every suffix that occurred before, in the prompt, the answer or a past answer, tells which tokens came next and how often. From
each, a tree is grown along the most likely paths, larger for a longer match, and the tree with the most expected tokens is
proposed. Past answers are kept in two generations per tenant: when the younger is full, it becomes the older, and the older is
dropped. Rejected draft tokens are never stored.

Source: Oliaro et al., SuffixDecoding (arXiv:2411.04975), sections 3 and 4; Hu et al., SAM Decoding (arXiv:2411.10666).
Proposals: POINT
Taps: none
Branching: REPLAY; its trees are cut to their first chain if the target supports less than TREE
Trained: no
Cost: tens of microseconds, regardless of context length; about 0.2 KB per token of context and of past answers. In a cascade,
where drafts are cut back, nearly every draft reads the whole text again: milliseconds after 16,000 tokens
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Many
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget
from paceline.drafters.base import StatefulDrafter, Surroundings
from paceline.kernels.compiled import ready
from paceline.kernels.suffixes.automaton import BORDER, KERNELS, LONGEST_MATCH, Bounds, SuffixAutomaton
from paceline.models.base import Scores
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """past: tokens of past answers kept per tenant, 0 for none. tenants: for how many tenants they are kept, those answered last.

    nodes, depth: largest size of a draft. factor, offset: after a match of n tokens, at most factor * n + offset nodes are
    drafted. floor: least probability of a drafted path.
    """

    model_config = ConfigDict(extra="forbid")

    past: Annotated[int, Field(ge=0, le=10_000_000)] = 65_536
    tenants: Annotated[int, Field(ge=1, le=4096)] = 16
    nodes: Annotated[int, Field(ge=1, le=64)] = 16
    depth: Annotated[int, Field(ge=1, le=32)] = 16
    factor: Annotated[float, Field(ge=0, le=16)] = 2.0
    offset: Annotated[float, Field(ge=0, le=64)] = 2.0
    floor: Annotated[float, Field(ge=0.01, le=1)] = 0.1


_LEAD = 8
"""Last tokens of a prompt that are kept with its answer: the answer's beginning is found by them."""


class _Past:
    """One tenant's latest answers, at most `limit` tokens, in two generations of automata."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self.generations = [SuffixAutomaton(), SuffixAutomaton()]

    def add(self, tokens: list[int]) -> None:
        """Remember the end of an answer; a full young generation becomes the old one."""
        kept = tokens[max(len(tokens) - self._half + 1, 0) :]
        if not kept:
            return
        young, _ = self.generations
        if young.tokens + len(kept) + 1 > self._half:
            self.generations = [SuffixAutomaton(), young]
        self.generations[0].extend([*kept, BORDER])


class SuffixDrafter(StatefulDrafter[SuffixAutomaton]):
    name = "suffix"
    kinds = frozenset({Proposal.POINT})
    watches = True

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.budget = Budget(options.nodes, options.depth)
        self._past: OrderedDict[str, _Past] = OrderedDict()
        # compiled before anything is timed
        ready(KERNELS)

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        text = self._state(sequence)
        text.extend(sequence.tokens[text.tokens :])
        bounds = self._bounds(budget.within(self.budget))
        best = text.draft(bounds)
        past = self._past.get(sequence.tenant)
        if past is not None:
            context = sequence.tokens[-LONGEST_MATCH:]
            # the request's own text wins where scores are equal
            best = max(
                best, *(generation.draft(bounds, context) for generation in past.generations), key=lambda found: found.score
            )
        return DraftTree.grown(self.name, (sequence.root, *best.tokens), (-1, *best.parents), (1.0, *best.shares))

    def _bounds(self, budget: Budget) -> Bounds:
        options = self.options
        return Bounds(budget.nodes, budget.depth, options.factor, options.offset, max(options.floor, budget.floor))

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        for sequence in sequences:
            if sequence.finish_reason is not None and self.options.past:
                self._remember(sequence)

    def _remember(self, sequence: Sequence) -> None:
        """Keep a finished answer for its tenant; for a new tenant, the one answered longest ago is dropped."""
        past = self._past.pop(sequence.tenant, None) or _Past(self.options.past)
        if len(self._past) == self.options.tenants:
            self._past.popitem(last=False)
        self._past[sequence.tenant] = past
        past.add(sequence.tokens[max(len(sequence.prompt) - _LEAD, 0) :])

    def _cut(self, state: SuffixAutomaton, length: int) -> bool:
        # an automaton cannot be cut back: it is rebuilt from the tokens at the next draft
        return state.tokens <= length

    def _begun(self, sequence: Sequence) -> SuffixAutomaton:
        return SuffixAutomaton()

    def forget(self) -> None:
        self._past.clear()


def build(options: Options, surroundings: Surroundings) -> SuffixDrafter:
    return SuffixDrafter(options)
