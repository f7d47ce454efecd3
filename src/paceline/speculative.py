"""Speculative: the step, a straight line. There is no other loop; plain decoding is the null drafter."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from paceline.acceptance import expected_tokens
from paceline.cache.base import Branching, KVCache
from paceline.costs import Timings
from paceline.drafters.base import Drafter
from paceline.models.base import LanguageModel
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import Budget, DraftTree
from paceline.verifiers.base import Verifier


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Outcome:
    """What one step brought for one sequence. tree is None for a prefill chunk."""

    sequence: Sequence
    tree: DraftTree | None
    verdict: Verdict


class Stops(Protocol):
    def cut(self, sequence: Sequence, verdict: Verdict) -> Verdict:
        """The verdict up to the first stop (EOS, stop string, length): nothing past one is ever committed."""
        ...


class Speculative:
    """A target, the drafters that run ahead of it, and the caches and rules between them."""

    def __init__(self, target: LanguageModel, drafter: Drafter, verifier: Verifier, policy: Policy) -> None:
        self.target, self.drafter, self.verifier, self.policy = target, drafter, verifier, policy
        self.cache: KVCache = target.new_cache()
        self.costs, self.acceptance = policy.costs, policy.acceptance
        self.forwards = 0

    def step(self, work: Many[Work], stops: Stops) -> list[Outcome]:
        """Draft, score, verify, cut and commit once for a batch: one target forward, prefill chunks included."""
        began = perf_counter()
        drafting = [item for item in work if item.reaches_root]
        drafts, asked_s = self._drafted(drafting)
        grown = {item.sequence.key: draft.tree for item, draft in zip(drafting, drafts, strict=True)}
        step = Step.of([_feed(item, grown.get(item.sequence.key)) for item in work])
        decoding = len(step.tokens) == sum(map(len, grown.values()))
        drafted = perf_counter()
        self.cache.stage(step)
        scores = self.target.score(step, self.cache, self.drafter.taps)
        self.forwards += 1
        scored = perf_counter()
        sequences, trees = [item.sequence for item in drafting], list(grown.values())
        logits = [rows[: tree.candidates] for rows, tree in zip(scores.of(trees), trees, strict=True)]
        verdicts = self.verifier(sequences, trees, logits) if trees else []
        verified = perf_counter()
        # text and stops are the engine's: they count as other
        verdicts = [stops.cut(sequence, verdict) for sequence, verdict in zip(sequences, verdicts, strict=True)]
        cut = perf_counter()
        reached = dict(zip(grown, verdicts, strict=True))
        self.cache.commit([reached.get(item.sequence.key, Verdict()) for item in work])
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            self._commit(sequence, draft, verdict)
        for item in work:
            item.sequence.speculation.target_forwards += 1
        self.drafter.observe(sequences, trees, verdicts, scores)
        timings = Timings(drafted - began, scored - drafted, verified - scored, perf_counter() - cut, asked_s)
        self.policy.observe(sequences, trees, verdicts, timings)
        self.costs.observe(len(step.tokens), len(work), max(item.start for item in work), timings, decoding=decoding)
        return [Outcome(item.sequence, grown.get(item.sequence.key), reached.get(item.sequence.key, Verdict())) for item in work]

    def _drafted(self, drafting: Many[Work]) -> tuple[list[_Draft], float]:
        """One tree per sequence: each part drafts what the policy grants, knowing what those before it proposed.

        Beside them the seconds that the drafters took.
        """
        asked_s = 0.0
        drafts = [_Draft(DraftTree.root(item.sequence.root)) for item in drafting]
        sequences = [item.sequence for item in drafting]
        for part in self.drafter.parts if drafting else ():
            granted = self.policy.budgets(part.part, sequences, [draft.tree for draft in drafts])
            rooms = [budget.within(item.room) for budget, item in zip(granted, drafting, strict=True)]
            asked = [one for one in zip(drafts, drafting, rooms, strict=True) if min(one[2].nodes, one[2].depth) > 0]
            if not asked:
                continue
            began = perf_counter()
            trees = part.propose([item.sequence for _, item, _ in asked], [budget for _, _, budget in asked])
            took_s = perf_counter() - began
            asked_s += took_s
            self.costs.drafted(part.name, max(budget.depth for _, _, budget in asked), len(asked), took_s)
            for (draft, item, budget), tree in zip(asked, trees, strict=True):
                # a drafter that has nothing to say costs next to nothing
                if len(tree) > 1:
                    self._take(draft, item, tree.pruned(budget))
        free = [at for at, draft in enumerate(drafts) if not draft.tree.kind.drawn and len(draft.tree) > 1]
        if free:
            kept = self.policy.trimmed([sequences[at] for at in free], [drafts[at].tree for at in free])
            for at, tree in zip(free, kept, strict=True):
                drafts[at].tree = tree
        return drafts, asked_s

    def _take(self, draft: _Draft, item: Work, tree: DraftTree) -> None:
        """Add what one part proposed: within the room, and in a form that the target can verify."""
        if self.target.branching < Branching.TREE:
            tree = tree.first_chain()
        draft.proposed.append(tree)
        draft.tree = draft.tree.merged(self.acceptance.rated(item.sequence.key, tree)).first(item.room.nodes)
        if self.target.branching < Branching.TREE:
            draft.tree = draft.tree.first_chain()

    def _commit(self, sequence: Sequence, draft: _Draft, verdict: Verdict) -> None:
        """Append what was emitted, count it, and learn from it; what was drafted and accepted is counted before any cut."""
        tree = draft.tree
        sources = [tree.sources[node] for node in verdict.path] + [""] * (len(verdict.tokens) - len(verdict.path))
        sequence.commit(verdict.tokens, tuple(sources))
        sequence.finish_reason = verdict.finish
        count = sequence.speculation
        count.steps += 1
        count.draft_tokens += tree.candidates - 1
        count.accepted_tokens += verdict.accepted
        count.emitted_tokens += len(verdict.tokens)
        count.predicted_tokens += expected_tokens(tree)
        count.drafted_by_depth.update(range(1, tree.deepest + 1))
        count.accepted_by_depth.update(range(1, verdict.accepted + 1))
        for proposed in draft.proposed:
            self.acceptance.observe(sequence.key, proposed, verdict.tokens)

    def release(self, key: int) -> None:
        """Drop all state of a sequence: it ended, or it was preempted and will be computed again."""
        self.cache.release(key)
        self.drafter.release(key)
        self.policy.release(key)
        self.acceptance.release(key)


@dataclass
class _Draft:
    """What is drafted for one sequence in one step: the tree that the target will see, and what each part proposed."""

    tree: DraftTree
    proposed: list[DraftTree] = field(default_factory=list)


def _feed(item: Work, tree: DraftTree | None) -> Feed:
    tokens = item.sequence.tokens[item.start : item.start + item.count]
    return Feed(item.sequence, item.start, tuple(tokens), tree)
