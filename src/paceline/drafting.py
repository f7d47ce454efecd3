"""Drafting: what the drafters propose for each sequence of a step, one after another, as far as the policy grants and the target
can verify. Under `match` nothing here can change a text. Which part of a drawn draft is kept never depends on its tokens
(`_prevails`, `_trim`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

import torch

from paceline.budget import NOTHING, Budget
from paceline.cache.base import Branching
from paceline.cache.pages import OutOfPages
from paceline.clock import now
from paceline.drafters.base import Drafter
from paceline.drafters.merge import left_beside
from paceline.frozen import frozen
from paceline.learning.acceptance import expected_tokens
from paceline.learning.depth_acceptance import DraftContext
from paceline.models.base import LanguageModel
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal
from paceline.union import union
from paceline.verifiers.base import Verifier

_TRIED = 32
"""Every so many times that a part yields to a looked-up draft, it drafts anyway: else its estimates would never change."""


@frozen
class Work:
    """A sequence picked for this step: `count` committed tokens to feed from `start`, and what may be drafted behind them.

    Where the count stops short of the root the work is a prefill chunk and nothing is drafted.
    """

    sequence: Sequence
    start: int
    count: int
    room: Budget

    @property
    def reaches_root(self) -> bool:
        return self.start + self.count == len(self.sequence.tokens)

    @property
    def rows(self) -> int:
        """Rows that it feeds whatever is drafted. Where a model must compute tokens of the answer again that a rejected draft has
        overwritten, only the root counts: the others are a cost of drafting."""
        return 1 if self.reaches_root and self.start >= len(self.sequence.prompt) else self.count


@dataclass
class Draft:
    """What is drafted for one sequence in one step: the tree that the target will see, and per part the levels granted and the
    tree proposed."""

    tree: DraftTree
    proposed: list[tuple[Drafter, int, DraftTree]] = field(default_factory=list)


class Drafting:
    """Asks the drafters in turn and merges what they propose into one tree per sequence.

    on_request: names of the drafters that draft only for sequences which name them.
    """

    def __init__(
        self, target: LanguageModel, drafter: Drafter, verifier: Verifier, policy: Policy, on_request: frozenset[str]
    ) -> None:
        self._drafter, self._policy, self._on_request = drafter, policy, on_request
        self._costs, self._acceptance, self._depth_acceptance = policy.costs, policy.acceptance, policy.depth_acceptance
        self._vocab_size = target.vocab_size
        self._chains, self._reads_chain = target.branching < Branching.TREE, verifier.reads_chain
        self._denied = Counter[str]()
        """Per part, how often it yielded to a looked-up draft since it last drafted in place of one."""

    def draft(self, work: Many[Work]) -> tuple[list[Draft], float]:
        """One tree per sequence, and the seconds that the drafters took.

        Each drafter drafts what the policy grants it in view of what the drafters before it proposed.
        """
        drafts = [Draft(DraftTree.root(item.sequence.root)) for item in work]
        sequences = [item.sequence for item in work]
        named = any(sequence.drafters is not None for sequence in sequences)
        # the policy does not see sequences without room: it would be judged by drafts that were not made
        roomy = [at for at, item in enumerate(work) if item.room.some]
        if not roomy or (not named and self._policy.skips_drafting(sequences)):
            return drafts, 0.0
        asked_s = 0.0
        for part in self._drafter.parts:
            if served := [at for at in roomy if self._serves(part, sequences[at])]:
                asked_s += self._ask(part, [(drafts[at], work[at]) for at in served])
        self._trim(drafts, sequences)
        return drafts, asked_s

    def _ask(self, part: Drafter, served: Many[tuple[Draft, Work]]) -> float:
        """Have one drafter add to the drafts of the sequences that it serves; returns the seconds that it took."""
        granted = self._granted(part, [item.sequence for _, item in served], [draft.tree for draft, _ in served])
        asked = []
        for (draft, item), budget in zip(served, granted, strict=True):
            # most steps of a policy that drafts nothing for anyone end here
            if budget is not NOTHING and (room := budget.within(left_beside(draft.tree, item.room))).some:
                if self._draws(part, item.sequence) and not self._prevails(part, room, draft, item.sequence):
                    continue
                asked.append((draft, item, room))
        if not asked:
            return 0.0
        began = now()
        try:
            trees = part.propose([item.sequence for _, item, _ in asked], [budget for _, _, budget in asked])
        except OutOfPages as error:
            # the drafter's own cache is full, which says nothing about room in the target's
            raise torch.OutOfMemoryError(str(error)) from error
        took_s = now() - began
        lengths = {item.sequence.key: len(item.sequence.tokens) for _, item, _ in asked}
        if not part.costly:
            # the granted depth makes no difference to its time, and is the whole except at the end of an answer
            self._costs.looked_up(part.name, part.budget.depth, lengths, took_s)
        elif depth := max(tree.deepest for tree in trees):
            # the time of a draft depends on the levels drafted, except where it is always made whole
            depth = max(budget.levels for _, _, budget in asked) if part.drafts_whole else depth
            self._costs.drafted(part.name, depth, lengths, took_s)
        for (draft, item, budget), tree in zip(asked, trees, strict=True):
            # a drafter that proposes nothing costs next to nothing
            if len(tree) > 1:
                # inside a cascade this vocabulary may be smaller than that of the looked-up text
                tree = _readable(tree.known(self._vocab_size), item.sequence).pruned(budget)
                self._take(draft, item, part, budget, tree.until(item.sequence.stop_ids))
        return took_s

    def _trim(self, drafts: Many[Draft], sequences: Many[Sequence]) -> None:
        """Have the policy cut the trees down to the nodes that are worth a row; drawn trees, and trees of requests that name
        their drafters, stay as they are."""
        free = [
            at
            for at, draft in enumerate(drafts)
            if len(draft.tree) > 1 and not draft.tree.kind.drawn and sequences[at].drafters is None
        ]
        if free:
            kept = self._policy.trimmed([sequences[at] for at in free], [drafts[at].tree for at in free])
            for at, tree in zip(free, kept, strict=True):
                drafts[at].tree = tree

    def _serves(self, part: Drafter, sequence: Sequence) -> bool:
        """Whether a part may draft for a sequence, and has anything to draft from."""
        if sequence.drafters is None:
            return part.name not in self._on_request and part.suits(sequence)
        return part.name in sequence.drafters and part.suits(sequence)

    def _granted(self, part: Drafter, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        """What a part may draft: all it wants for a request that names its drafters, else what the policy decides."""
        decided = [at for at, sequence in enumerate(sequences) if sequence.drafters is None]
        if len(decided) == len(sequences):
            return self._policy.budgets(part.info, sequences, trees)
        granted = [part.budget] * len(sequences)
        if decided:
            wishes = self._policy.budgets(part.info, [sequences[at] for at in decided], [trees[at] for at in decided])
            for at, budget in zip(decided, wishes, strict=True):
                granted[at] = budget
        return granted

    @staticmethod
    def _draws(part: Drafter, sequence: Sequence) -> bool:
        return sequence.params.temperature > 0.0 and any(kind.drawn for kind in part.kinds)

    def _prevails(self, part: Drafter, budget: Budget, draft: Draft, sequence: Sequence) -> bool:
        """Whether a part that draws is expected to bring more tokens than the looked-up draft, which is then dropped.

        Merged, both would count as point masses, and the verifier would not see what was drawn from which distribution. This is
        decided before anything is drawn: a choice that depends on drawn tokens would falsify their recorded distribution.
        """
        if len(draft.tree) == 1 or draft.tree.kind.drawn:
            return True
        brought = self._depth_acceptance.brought(part.name, budget.levels, DraftContext.of(sequence.generated_tokens, True))
        if 1.0 + sum(accumulate(brought, mul)) < expected_tokens(draft.tree):
            self._denied[part.name] += 1
            if self._denied[part.name] < _TRIED:
                return False
        self._denied[part.name] = 0
        draft.tree = DraftTree.root(sequence.root)
        return True

    def _take(self, draft: Draft, item: Work, part: Drafter, budget: Budget, tree: DraftTree) -> None:
        """Add what one part proposed: within the room, and in a form that the target can verify."""
        chains = self._chains or (self._reads_chain and item.sequence.params.temperature > 0.0)
        if chains:
            tree = tree.first_chain()
        draft.proposed.append((part, budget.levels, tree))
        rated = self._acceptance.rated(item.sequence.key, tree)
        if draft.tree.kind.drawn and not rated.kind.drawn:
            # as in `_prevails`
            return
        both = union(draft.tree, rated)
        if not chains:
            draft.tree = both.likeliest(item.room.nodes)
        elif both.is_chain or both.kind.drawn:
            draft.tree = both.first_chain().first(item.room.nodes)
        else:
            # only one of both can be verified; choosing by drawn tokens falsifies their distribution, so it is dropped
            draft.tree = max(draft.tree, rated, key=expected_tokens).undrawn().first(item.room.nodes)


def _readable(tree: DraftTree, sequence: Sequence) -> DraftTree:
    """A looked-up draft without the nodes that the request's grammar refuses. Drawn drafts keep to it already, as far as they
    can, and must not be filtered by their tokens."""
    constraint = sequence.constraint
    if constraint is None or tree.kind is not Proposal.POINT:
        return tree
    kept, inner = set[int](), {*tree.parents[1 : tree.candidates]}
    for node in range(1, tree.candidates):
        if node not in inner:
            path = tree.path(node)
            kept.update(path[: constraint.readable(tuple([tree.tokens[step] for step in path]))])
    if len(kept) == tree.candidates - 1:
        return tree
    return tree.only([*sorted(kept), *range(tree.candidates, len(tree))])
