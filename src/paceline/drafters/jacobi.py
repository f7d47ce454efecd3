"""Jacobi decoding: the tokens that the target chooses at the drafted rows of one step are the draft of the next step.

A block of guessed tokens is verified after the root. At each of its rows the target chooses a token, whether the guesses before
that row are right or wrong. These choices, shifted by the number of emitted tokens, are the next block. The tokens of the first
block, and places that a trimmed block leaves empty, are drawn at random from the prompt. Under `match` at a temperature the
target chooses with the noise of the position, so the iteration converges to exactly the text that sampling will produce; under
other verifiers it takes the most likely token. First guesses are rarely right, so policies that drop unlikely tokens
(`adaptive`, `confidence`) stop the iteration before it converges: use it with `fixed`.

Source: Santilli et al., Accelerating Transformer Inference for Translation via Parallel Decoding (arXiv:2305.10427), section 3;
Song et al. (arXiv:2002.03629).
Proposals: POINT, COUPLED
Taps: none
Branching: REPLAY
Trained: no
Cost: the rows of the block in every forward pass, and choosing a token at each of them
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget
from paceline.drafters.base import StatefulDrafter, Surroundings, likeliest
from paceline.draws import chance
from paceline.kernels.choices.tree_walk import chosen
from paceline.models.base import Scores
from paceline.sampling import Context, LogitsError
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """block: tokens guessed per step."""

    model_config = ConfigDict(extra="forbid")

    block: Annotated[int, Field(ge=1, le=64)] = 3


Guess = tuple[int, int]
"""A token, and in how many steps in a row the target has chosen it for its position; 0 for one drawn from the prompt."""

_CONFIDENCES = (0.02, 0.1, 0.15, 0.2)
"""Confidence of a guess that was drawn, or chosen once, twice, or more often; doubled where another guess is before it."""


class JacobiDrafter(StatefulDrafter[list[Guess]]):
    """coupled: choose at a temperature with the noise that the verifier will choose with."""

    name = "jacobi"

    def __init__(self, options: Options, coupled: bool) -> None:
        super().__init__()
        self.options, self._coupled = options, coupled
        self.kinds = frozenset({Proposal.POINT, Proposal.COUPLED} if coupled else {Proposal.POINT})
        self.budget = Budget(nodes=options.block, depth=options.block)

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        # within a cascade a text may begin with its answer
        size, prompt = min(budget.levels, self.options.block), sequence.prompt or sequence.tokens
        block = self._state(sequence)[:size]
        block += [(prompt[int(chance(sequence, self.name, at) * len(prompt))], 0) for at in range(len(block), size)]
        self._states[sequence.key] = block
        kind = Proposal.COUPLED if self._coupled and sequence.params.temperature > 0.0 else Proposal.POINT
        held = [_CONFIDENCES[min(times, 3)] * (2 if at else 1) for at, (_, times) in enumerate(block)]
        return DraftTree.chain(sequence.root, [token for token, _ in block], self.name, kind, held)

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        for sequence, tree, verdict, logits in zip(sequences, trees, verdicts, scores.of(trees), strict=True):
            block = self._states.pop(sequence.key, [])
            if block and sequence.finish_reason is None:
                # choices for positions that are committed by now are of no use
                emitted = len(verdict.tokens)
                rows, known = _rows(tree, block)[emitted:], block[emitted:]
                chosen = self._chosen(sequence, logits, rows, tuple(token for token, _ in known)) if rows else []
                self._states[sequence.key] = [
                    (token, known[at][1] + 1 if at < len(known) and known[at][0] == token else 1)
                    for at, token in enumerate(chosen)
                ]

    def _chosen(self, sequence: Sequence, logits: torch.Tensor, rows: list[int], guesses: tuple[int, ...]) -> list[int]:
        """The target's token at each row, if the guesses before it are right; none where rows hold NaN."""
        if not self._coupled or sequence.plain_greedy:
            return likeliest(logits, rows)
        try:
            return chosen(logits[rows], [Context(sequence, guesses[:at]) for at in range(len(rows))])
        except LogitsError:
            return []

    def _begun(self, sequence: Sequence) -> list[Guess]:
        return []

    def _bytes_of(self, state: list[Guess]) -> int:
        # a list of pairs of integers
        return 56 + 120 * len(state)


def _rows(tree: DraftTree, block: list[Guess]) -> list[int]:
    """The root and the nodes of the block, as far as the tree that the target saw still holds it."""
    rows = [0]
    for token, _ in block:
        node = tree.children[rows[-1]].get(token)
        if node is None:
            break
        rows.append(node)
    return rows


def build(options: Options, surroundings: Surroundings) -> JacobiDrafter:
    return JacobiDrafter(options, coupled=Proposal.COUPLED in surroundings.prefers)
