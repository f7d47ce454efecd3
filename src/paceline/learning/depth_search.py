"""Depth search: of all depths to which a costly drafter could go, and all sets of sequences that it could draft for, those with
the most expected tokens per second.

Source: the trade of tree size against measured verification time, Sequoia (arXiv:2402.12374), section 4.3; per-request goodput
under load, SmartSpec (Liu et al., arXiv:2406.14066), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import accumulate, pairwise
from math import inf
from operator import mul

from paceline.budget import DrafterInfo
from paceline.learning.acceptance import Acceptance
from paceline.learning.calibration import Calibration
from paceline.learning.costs import Costs
from paceline.learning.decision_cache import NOBODY, Decision
from paceline.learning.depth_acceptance import DepthAcceptance, DraftContext
from paceline.learning.draft_history import DraftHistory
from paceline.learning.step_time import CLEARLY, StepTime
from paceline.sequence import Sequence
from paceline.stopping import LIKELIEST, shifted
from paceline.tree import DraftTree

_CLEARLY_COSTLY = 1.15
"""Factor by which drafts of a costly drafter must be better than none. It includes what step times do not show: deciding takes
time, and the drafter's weights displace others in the processor's caches."""


class DepthSearch:
    """Searches by the estimates of the policy that owns them."""

    def __init__(
        self,
        costs: Costs,
        acceptance: Acceptance,
        depth_acceptance: DepthAcceptance,
        calibration: Calibration,
        step_time: StepTime,
        draft_history: DraftHistory,
    ) -> None:
        self._costs, self._acceptance, self._depth_acceptance = costs, acceptance, depth_acceptance
        self._calibration, self._step_time, self._draft_history = calibration, step_time, draft_history

    def decided(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> Decision:
        """The decision on one costly drafter. trees: what lookups found, as far as the target would verify it anyway."""
        depth, chosen = self.best(drafter, sequences, trees)
        if not chosen:
            return NOBODY
        if drafter.ends_early:
            # where it ends is decided token by token; nothing would ever be learnt about levels that are never granted
            depth = drafter.budget.depth
        count, wide, where = len(chosen), len(chosen) * drafter.width, _where(sequences, trees)
        forwards_s = self._costs.curve.span(self._step_time.rows(trees), depth * wide)[::wide]
        rows_s, worth_s = [after - before for before, after in pairwise(forwards_s)], self._step_time.token_s
        drafts_s = [self._costs.draft_s(drafter.name, level, count) for level in (1, depth)]
        level_s, right = (drafts_s[1] - drafts_s[0]) / max(depth - 1, 1), self._depth_acceptance.right(drafter.name, depth, where)
        worth_all_s = count * worth_s * self._calibration.factor(drafter.name)
        least = [(row_s + level_s) / (worth_all_s * chance) for row_s, chance in zip(rows_s[1:], right[1:], strict=True)]
        first_s = rows_s[0] + self._step_time.drafting_s
        pays = CLEARLY * first_s / worth_s, sum(rows_s) / depth / worth_s
        drafted = self._depth_acceptance.drafted(drafter.name, depth, where)
        return Decision(depth, chosen, least, self._draft_s(drafter, drafted, count), pays, sum(drafted))

    def best(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> tuple[int, Many[int]]:
        """The depth, and the places of the sequences, with the most expected tokens per second; depth 0 for none.

        trees: what lookups found, as far as the target would verify it anyway.
        """
        rows = self._step_time.rows(trees)
        before = [self._levels(tree, drafter.budget.depth) for tree in trees]
        # tokens that the trees so far are expected to bring, with the target's own token of every sequence,
        # also of sequences that are not asked about here, which take part in the step
        tokens, factor = max(self._step_time.batch, len(trees)) + sum(map(sum, before)), self._calibration.factor(drafter.name)
        drafted = self._depth_acceptance.drafted(drafter.name, drafter.budget.depth, _where(sequences, trees))
        gains = [
            list(accumulate(map(_more, [factor * chance for chance in self.chain(sequence, drafter, tree)], levels)))
            for sequence, tree, levels in zip(sequences, trees, before, strict=True)
        ]
        readings = [
            self.reading_s(drafter, sequence) / self._draft_history.drafts_left(drafter.name, sequence) for sequence in sequences
        ]
        worth, clearly = self._step_time.worth(_CLEARLY_COSTLY)
        best, depth, chosen = clearly * worth(tokens, self._step_time.step_s(rows, any(len(tree) > 1 for tree in trees))), 0, ()
        # by sequences drafted for: rows that the levels so far add if all are drafted, and what the step is expected to take
        forwards_s = self._costs.curve.span(rows, len(gains) * drafter.budget.depth * drafter.width)
        undrafted = (0, self._step_time.step_s(rows, True))
        steps: dict[int, tuple[int, float]] = {}
        falling, everyone, unfound = -inf, list(range(len(gains))), sum([len(tree) == 1 for tree in trees])
        for level in range(1, drafter.budget.depth + 1):
            order = sorted(everyone, key=lambda at, level=level: -gains[at][level - 1]) if len(everyone) > 1 else everyone
            gained, added, reading_s, top = 0.0, 0, 0.0, -inf
            for count, at in enumerate(order, 1):
                gained += gains[at][level - 1]
                # of two drafts for one sequence only the better nodes will be verified
                added += max(1 + level * drafter.width - trees[at].candidates, 0)
                reading_s += readings[at]
                if count & (count - 1) and count < len(order) and count != unfound:
                    # powers of two are close enough; a decision for all those without a find stays valid for a while
                    continue
                fewer, step_s = steps.get(count, undrafted)
                step_s += drafted[level - 1] * (forwards_s[added] - forwards_s[fewer])
                steps[count] = added, step_s
                value = worth(tokens + gained, step_s + self._draft_s(drafter, drafted[:level], count) + reading_s)
                top = max(top, value)
                if value > best:
                    best, depth, chosen = value, level, order[:count]
            if top < falling:
                # what a level adds only shrinks, and what it costs does not
                break
            falling = top
        return depth, chosen

    def _draft_s(self, drafter: DrafterInfo, drafted: Many[float], count: int) -> float:
        """Seconds that drafts for so many sequences are expected to take. drafted: how likely each level is drafted for one."""
        levels = sum(drafted) if count == 1 else sum([1.0 - (1.0 - share) ** count for share in drafted])
        return self._costs.draft_s(drafter.name, levels, count)

    def reading_s(self, drafter: DrafterInfo, sequence: Sequence) -> float:
        """Seconds in which this drafter reads what it lacks of a text, before it can draft."""
        return self._draft_history.lacking(drafter.name, sequence) * self._costs.reading.get(drafter.name, 0.0)

    def chain(self, sequence: Sequence, drafter: DrafterInfo, tree: DraftTree) -> list[float]:
        """Per depth, how likely a token of this drafter is right with all before it. tree: what lookups found."""
        odds = self._acceptance.odds_before(sequence.key, drafter.name)
        brought = self._depth_acceptance.brought(
            drafter.name, drafter.budget.depth, DraftContext.of(sequence.generated_tokens, len(tree) > 1)
        )
        return list(accumulate([min(shifted(chance, odds), LIKELIEST) for chance in brought], mul))

    def _levels(self, tree: DraftTree, depth: int) -> list[float]:
        """Per depth from 1 on, the probability that some node of that depth is right."""
        levels = [0.0] * depth
        if len(tree) > 1:
            for chance, level in zip(self._calibration.chances(tree), tree.depth, strict=False):
                if 0 < level <= depth:
                    levels[level - 1] += chance
        return levels


def _where(sequences: Many[Sequence], trees: Many[DraftTree]) -> DraftContext:
    """Where a draft for one sequence is made, and where most are in a batch."""
    return DraftContext.of(sequences[0].generated_tokens, len(trees[0]) > 1) if len(sequences) == 1 else DraftContext.ALONE


def _more(chance: float, known: float) -> float:
    """What a chain adds at a depth where other drafts are right with probability `known`: nothing, if they are better."""
    return max(chance - known, 0.0)
