"""Lookahead decoding: n-grams that the target generates from a window of guesses, which every forward pass includes.

The window has W columns of N - 1 tokens, and each column begins one position after the previous one. Column 0 begins with the
root. In the tree, the first token of any other column is a child of the first token of the column before it, and every further
token is a child of the token before it in its column. All of them but the root are probes, never candidates. The token that the
target chooses at the end of a column completes an n-gram, which is added to the pool, and the column moves on by one token.

Candidates are the pool's n-grams that begin with the root; each is extended by the latest n-gram of its last token, which the
paper does not do. The pool also learns the n-grams of the text, an option of the authors' implementation. Columns take the
target's most likely token at any temperature: n-grams are used at other positions than those where they were found, so the noise
of a position would be of little help. Verifiers that read one chain (`rejection`, `block`, `lenient`) leave no rows for probes
at a temperature: then the window does not move, and the pool learns from the text alone. The defaults are small, because every
row costs time on a CPU; the paper's setting for a GPU is window=15, ngram=5, guesses=15.

Source: Fu et al., Break the Sequential Dependency of LLM Inference Using Lookahead Decoding (arXiv:2402.02057), section 3.
Proposals: POINT
Taps: none
Branching: TREE
Trained: no
Cost: rows in every forward pass, W * (N - 1) for the window and up to guesses * depth for candidates, and one choice per column
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget
from paceline.cache.base import Branching
from paceline.drafters.base import StatefulDrafter, Surroundings, likeliest
from paceline.lookups.ngram_pool import NgramPool
from paceline.models.base import Scores
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """window: columns (W). ngram: tokens of an n-gram, including the one it is looked up by (N). guesses: n-grams kept and tried
    per token (G). depth: most tokens in a candidate, but at least ngram - 1."""

    model_config = ConfigDict(extra="forbid")

    window: Annotated[int, Field(ge=1, le=64)] = 4
    ngram: Annotated[int, Field(ge=2, le=16)] = 2
    guesses: Annotated[int, Field(ge=1, le=64)] = 2
    depth: Annotated[int, Field(ge=1, le=64)] = 4


@dataclass
class _State:
    """columns: the window. learnt: tokens of the text whose n-grams are in the pool. probes: rows that the window has in this
    step. ends: the last row of each column in this step: 0 for the root, else the number of a probe from 1 on."""

    pool: NgramPool
    columns: list[list[int]]
    learnt: int = 0
    probes: int = 0
    ends: list[int] = field(default_factory=list)


class LookaheadDrafter(StatefulDrafter[_State]):
    name = "lookahead"
    kinds = frozenset({Proposal.POINT})
    branching = Branching.TREE

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        window, ngram = options.window, options.ngram
        self._depth = max(options.depth, ngram - 1)
        # while it fills, the window is wider and less deep
        probes = max((window + ngram - 1 - level) * level for level in range(1, ngram)) - 1
        self.budget = Budget(options.guesses * self._depth + probes, max(self._depth, window + ngram - 3))

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        state = self._state(sequence)
        state.learnt = state.pool.learn(sequence.tokens, state.learnt)
        paths, shares = state.pool.guesses(sequence.root, min(self._depth, budget.depth))
        tree = DraftTree.of_paths(sequence.root, paths, self.name, budget.nodes, shares)
        tokens, parents, first = list(tree.tokens), list(tree.parents), 0
        state.columns[0][0] = sequence.root
        state.ends = []
        for number, column in enumerate(state.columns):
            fresh = len(column) - (number == 0)
            if number + len(column) - 1 > budget.depth or len(tokens) + fresh > budget.nodes + 1:
                break
            if number:
                tokens.append(column[0])
                parents.append(first)
                first = len(tokens) - 1
            # the second token is a child of the first, all others of the token before
            parents += [first, *range(len(tokens), len(tokens) + len(column) - 2)][: len(column) - 1]
            tokens += column[1:]
            state.ends.append(len(tokens) - len(tree))
        state.probes = len(tokens) - len(tree)
        sources = ("", *[self.name] * (len(tokens) - 1))
        confidences = (*tree.confidences, *[1.0] * state.probes)
        return DraftTree(tuple(tokens), tuple(parents), Proposal.POINT, {}, sources, confidences, state.probes)

    def _begun(self, sequence: Sequence) -> _State:
        """A window of one level, wider by what it takes to fill the other levels: the last tokens up to the root."""
        wide = self.options.window + self.options.ngram - 2
        tokens = (sequence.tokens[-wide:] * wide)[:wide]
        pool = NgramPool(self.options.ngram, self.options.guesses)
        return _State(pool, [[token] for token in tokens])

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        for sequence, tree, logits in zip(sequences, trees, scores.of(trees), strict=True):
            state = self._states.get(sequence.key)
            if state is None or not state.ends or sequence.finish_reason is not None:
                continue
            ends, state.ends = state.ends, []
            probes = [node for node in range(tree.candidates, len(tree)) if tree.sources[node] == self.name]
            # a window that was trimmed does not move in this step
            if len(probes) == state.probes:
                self._move(state, likeliest(logits, [[0, *probes][end] for end in ends]))

    def _move(self, state: _State, chosen: list[int]) -> None:
        """Append a token to every column; a column that has become an n-gram goes into the pool and drops its first token."""
        for column, token in zip(state.columns, chosen, strict=False):
            column.append(token)
            if len(column) == self.options.ngram:
                state.pool.add(column)
                del column[0]
        if len(state.columns) > self.options.window:
            del state.columns[0]

    def _cut(self, state: _State, length: int) -> bool:
        # the pool and the window hold guesses, useful whatever text they came from: only the place to learn from next must be
        # right. In a cascade nearly every draft is cut back
        state.learnt = min(state.learnt, max(length - state.pool.size + 1, 0))
        # a window behind tokens that were cut must not move by choices made elsewhere
        state.ends = []
        return True

    def _bytes_of(self, state: _State) -> int:
        return state.pool.held_bytes


def build(options: Options, surroundings: Surroundings) -> LookaheadDrafter:
    return LookaheadDrafter(options)
