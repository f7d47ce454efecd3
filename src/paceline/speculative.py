"""Speculative: the step, a straight line. There is no other loop; plain decoding is the null drafter."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from paceline.cache.base import Branching, KVCache
from paceline.costs import Costs, Timings
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
    """A target, the drafter that runs ahead of it, and the caches and rules between them."""

    def __init__(self, target: LanguageModel, drafter: Drafter, verifier: Verifier, policy: Policy) -> None:
        self.target, self.drafter, self.verifier, self.policy = target, drafter, verifier, policy
        self.cache: KVCache = target.new_cache()
        self.costs = Costs()
        self.forwards = 0

    def step(self, work: Many[Work], stops: Stops) -> list[Outcome]:
        """Draft, score, verify, cut and commit once for a batch: one target forward, prefill chunks included."""
        began = perf_counter()
        drafting = [item for item in work if item.reaches_root]
        trees = self._propose(drafting)
        feeds = [_feed(item, trees.get(item.sequence.key)) for item in work]
        step = Step.of(feeds)
        drafted = perf_counter()
        self.cache.stage(step)
        scores = self.target.score(step, self.cache, self.drafter.taps)
        self.forwards += 1
        scored = perf_counter()
        sequences = [item.sequence for item in drafting]
        grown = [trees[sequence.key] for sequence in sequences]
        logits = scores.logits.split([len(tree) for tree in grown]) if grown else ()
        verdicts = self.verifier(sequences, grown, logits) if grown else []
        verified = perf_counter()
        # text and stops are the engine's: they count as other
        verdicts = [stops.cut(sequence, verdict) for sequence, verdict in zip(sequences, verdicts, strict=True)]
        cut = perf_counter()
        by_key = {sequence.key: verdict for sequence, verdict in zip(sequences, verdicts, strict=True)}
        self.cache.commit([by_key.get(item.sequence.key, Verdict()) for item in work])
        for sequence, tree, verdict in zip(sequences, grown, verdicts, strict=True):
            _commit(sequence, tree, verdict)
        for item in work:
            item.sequence.speculation.target_forwards += 1
        self.drafter.observe(sequences, grown, verdicts, scores)
        timings = Timings(drafted - began, scored - drafted, verified - scored, perf_counter() - cut)
        self.policy.observe(sequences, verdicts, timings)
        self.costs.observe(len(step.tokens), len(work), max(item.start for item in work), timings)
        return [Outcome(item.sequence, trees.get(item.sequence.key), by_key.get(item.sequence.key, Verdict())) for item in work]

    def _propose(self, drafting: Many[Work]) -> dict[int, DraftTree]:
        """One tree per sequence, within what the policy grants and what the sequence has room for."""
        if not drafting:
            return {}
        sequences = [item.sequence for item in drafting]
        budgets = [
            Budget(min(granted.nodes, item.room.nodes), min(granted.depth, item.room.depth))
            for granted, item in zip(self.policy.budgets(sequences), drafting, strict=True)
        ]
        trees = self.drafter.propose(sequences, budgets)
        if self.target.branching < Branching.TREE:
            trees = [tree.first_chain() for tree in trees]
        return {sequence.key: tree.pruned(budget) for sequence, tree, budget in zip(sequences, trees, budgets, strict=True)}

    def release(self, key: int) -> None:
        """Drop all state of a sequence: it ended, or it was preempted and will be computed again."""
        self.cache.release(key)
        self.drafter.release(key)


def _feed(item: Work, tree: DraftTree | None) -> Feed:
    tokens = item.sequence.tokens[item.start : item.start + item.count]
    return Feed(item.sequence, item.start, tuple(tokens), tree)


def _commit(sequence: Sequence, tree: DraftTree, verdict: Verdict) -> None:
    """Append what was emitted and count it; what was drafted and accepted is counted before any cut."""
    sources = [tree.sources[node] for node in verdict.path] + [""] * (len(verdict.tokens) - len(verdict.path))
    sequence.commit(verdict.tokens, tuple(sources))
    sequence.finish_reason = verdict.finish
    count = sequence.speculation
    count.steps += 1
    count.draft_tokens += len(tree) - 1
    count.accepted_tokens += verdict.accepted
    count.emitted_tokens += len(verdict.tokens)
    count.drafted_by_depth.update(range(1, max(tree.depth) + 1))
    count.accepted_by_depth.update(range(1, verdict.accepted + 1))
