"""Token recycling: after each token, the successors that the target found most likely when it last processed that token.

Every row of a forward pass, accepted or not, shows which tokens the target finds most likely next; while no drafts are
requested, only one step in four is recorded. A table keeps the best successors of each token, over all requests of a tenant, and
a tree is filled from it. The tree has the optimal shape for how often the token of each rank was right so far (Sequoia,
arXiv:2402.12374, section 4.1). Tables are kept from request to request, until the engine is told to forget them or other tenants
need the room.

Source: Luo et al., Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling
(arXiv:2408.08696), section 3.
Proposals: POINT
Taps: none
Branching: REPLAY; its trees are cut to their first chain if the target supports less than TREE
Trained: no
Cost: finding the top tokens of every row of logits, and the rows of the tree
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Many
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget
from paceline.drafters.base import Drafter, Surroundings
from paceline.kernels.compiled import ready
from paceline.kernels.successors.successors import NOTHING, RECORD_TOP_K, Successors
from paceline.models.base import Scores
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import Ranks, children, optimal_tree


class Options(BaseModel):
    """nodes, depth: largest size of the tree. successors: successors kept per token."""

    model_config = ConfigDict(extra="forbid")

    nodes: Annotated[int, Field(ge=1, le=128)] = 8
    depth: Annotated[int, Field(ge=1, le=16)] = 6
    successors: Annotated[int, Field(ge=1, le=32)] = 8


_MOST_TOKENS = 2**17
"""Tokens that all tables together may have room for; beyond, the least recently used is dropped, but none of this step's."""
_FIRST_TOKENS = 256
"""Initial room of a table, in tokens."""
_UNASKED = 4
"""While no drafts are asked for, as where they are seldom worth it, one step in so many is recorded: on a small model recording
takes a fifth of a step's time."""


def _acceptance(successors: int) -> list[float]:
    """How often the first, second, ... of a token's successors is right, before any observation; measured on the embedded model,
    greedy."""
    return [0.6, *(0.07 / rank for rank in range(1, successors))]


class _Table:
    """rows: token -> its row in `successors`, for every token seen."""

    def __init__(self, successors: int) -> None:
        self.rows: dict[int, int] = {}
        self.successors = Successors(_FIRST_TOKENS, successors)

    def take(self, seen: list[int], logits: torch.Tensor) -> None:
        """Record what follows each of `seen`; where a token was seen twice the later row counts. logits: float32 [n, V]."""
        # room first: after an interrupt, `rows` must not name a row that does not exist
        self.successors.grow(len(self.rows) + len({token for token in seen if token not in self.rows}))
        self.successors.note(logits, [self.rows.setdefault(token, len(self.rows)) for token in seen])


class RecycleDrafter(Drafter):
    name = "recycle"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, options: Options, vocab_size: int) -> None:
        self.options, self._successors = options, min(options.successors, vocab_size)
        self.budget = Budget(options.nodes, options.depth)
        self._begin()
        self._drafts: dict[int, DraftTree] = {}
        """The drafts of this step, by request."""
        self._unasked = 0
        """Steps since a draft was last asked for."""
        self._tables: OrderedDict[str, _Table] = OrderedDict()
        # compiled before anything is timed
        ready((RECORD_TOP_K,))

    def _begin(self) -> None:
        """Reset the acceptance of every rank to its initial value."""
        self._ranks = Ranks(_acceptance(self._successors))
        self._reshape()

    def _reshape(self) -> None:
        self._shape = optimal_tree(self._ranks.acceptance, self.options.nodes, self.options.depth)

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        trees = [self._one(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]
        self._drafts = {sequence.key: tree for sequence, tree in zip(sequences, trees, strict=True)}
        return trees

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        table = self._tables.get(sequence.tenant)
        if table is None:
            return DraftTree.root(sequence.root)
        tokens, parents, held = [sequence.root], [-1], [1.0]
        places = {0: 0}
        for node, below in enumerate(children(self._shape, budget.nodes, budget.depth)):
            if below and node in places:
                parent = places[node]
                row = table.rows.get(tokens[parent])
                if row is None:
                    continue
                for child, token, share in zip(
                    below, table.successors.tokens[row].tolist(), table.successors.shares[row].tolist(), strict=False
                ):
                    if token != NOTHING:
                        places[child] = len(tokens)
                        tokens.append(token)
                        parents.append(parent)
                        held.append(share)
        return DraftTree.grown(self.name, tokens, parents, held)

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        drafts, self._drafts = self._drafts, {}
        self._unasked = 0 if drafts else self._unasked + 1
        if self._unasked % _UNASKED:
            return
        tenants = dict.fromkeys([sequence.tenant for sequence in sequences])
        if len(tenants) == 1:
            seen = [token for tree in trees for token in tree.tokens]
            self._table(*tenants).take(seen, scores.logits[: len(seen)])
        else:
            rows = scores.of(trees)
            for tenant in tenants:
                of = [at for at, sequence in enumerate(sequences) if sequence.tenant == tenant]
                seen = [token for at in of for token in trees[at].tokens]
                self._table(tenant).take(seen, torch.cat([rows[at] for at in of]))
        for sequence, verdict in zip(sequences, verdicts, strict=True):
            draft = drafts.get(sequence.key)
            if draft is not None and len(draft) > 1 and self._ranks.observe(draft, verdict.tokens):
                self._reshape()
        if len(self._tables) > len(tenants):
            self._drop_oldest(len(tenants))

    def _drop_oldest(self, kept: int) -> None:
        """Drop the least recently used tables while all together are too large, but never the last `kept`."""
        room = sum(len(table.successors.tokens) for table in self._tables.values())
        while room > _MOST_TOKENS and len(self._tables) > kept:
            room -= len(self._tables.popitem(last=False)[1].successors.tokens)

    def _table(self, tenant: str) -> _Table:
        """The table of a tenant, marked as the most recently used."""
        table = self._tables.get(tenant)
        if table is None:
            table = self._tables[tenant] = _Table(self._successors)
        self._tables.move_to_end(tenant)
        return table

    def forget(self) -> None:
        self._tables.clear()
        self._drafts.clear()
        self._begin()


def build(options: Options, surroundings: Surroundings) -> RecycleDrafter:
    return RecycleDrafter(options, surroundings.target.vocab_size)
