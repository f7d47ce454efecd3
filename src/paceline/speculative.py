"""Speculative: the step, a straight line. There is no other loop; plain decoding is the null drafter."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Protocol

import torch

from paceline.budget import NOTHING, Budget
from paceline.cache.base import Branching, KVCache
from paceline.cache.pages import OutOfPages
from paceline.clock import now
from paceline.drafters.base import Drafter
from paceline.drafters.merge import left_beside
from paceline.frozen import frozen
from paceline.kernels.choices.logprobs import token_logprobs
from paceline.kernels.compiled import available
from paceline.kernels.precompiled import CHOICES
from paceline.learning.acceptance import expected_tokens
from paceline.learning.costs import Timings
from paceline.learning.depth_acceptance import DraftContext
from paceline.models.base import LanguageModel
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.step import Feed, Segment, Step, Verdict
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Verifier


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
        """Rows that it feeds whatever is drafted: of a model that computes again what a refused draft has overwritten, the root
        alone, for these are tokens of the answer, which come of drafting, and no prompt."""
        return 1 if self.reaches_root and self.start >= len(self.sequence.prompt) else self.count


@frozen
class Outcome:
    """What one step brought for one sequence. tree is None for a prefill chunk. timings, rows: of the step."""

    sequence: Sequence
    tree: DraftTree | None
    verdict: Verdict
    timings: Timings
    rows: int


class Stops(Protocol):
    def cut(self, sequence: Sequence, verdict: Verdict) -> Verdict:
        """The verdict up to the first stop (EOS, stop string, length): nothing past one is ever committed."""
        ...


class Speculative:
    """A target, the drafters that run ahead of it, and the caches and rules between them.

    on_request: names of parts of the drafter that draft only for sequences which name them.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter,
        verifier: Verifier,
        policy: Policy,
        on_request: frozenset[str] = frozenset(),
    ) -> None:
        self.on_request = on_request
        self.target, self.drafter, self.verifier, self.policy = target, drafter, verifier, policy
        self.cache: KVCache = target.new_cache()
        self.costs, self.acceptance, self.depth_acceptance = policy.costs, policy.acceptance, policy.depth_acceptance
        self.forwards = 0
        self._chains, self._reads_chain = target.branching < Branching.TREE, verifier.reads_chain
        if not target.returns_early:
            # now, and not in the first step that samples
            available(*CHOICES, *verifier.kernels)

    def step(self, work: Many[Work], stops: Stops) -> list[Outcome]:
        """Draft, score, verify, cut and commit once for a batch: one target forward, prefill chunks included."""
        began = now()
        drafting = [item for item in work if item.reaches_root]
        if drafting:
            self.costs.curve.behind(sum([item.start for item in drafting]), len(drafting))
        self.policy.begin(sum([item.rows for item in work]), len(drafting))
        drafts, asked_s = self._drafted(drafting)
        grown = {item.sequence.key: draft.tree for item, draft in zip(drafting, drafts, strict=True)}
        step = Step.of([_feed(item, grown.get(item.sequence.key)) for item in work])
        decoding = len(step.tokens) == sum(map(len, grown.values()))
        drafted = now()
        self.cache.stage(step)
        scores = self.target.score(step, self.cache, self.drafter.taps)
        self.forwards += 1
        scored = now()
        sequences, trees = [item.sequence for item in drafting], list(grown.values())
        logits = [rows[: tree.candidates] if tree.probes else rows for rows, tree in zip(scores.of(trees), trees, strict=True)]
        with self.target.undisturbed(self.target.vocab_size):
            verdicts = self.verifier(sequences, trees, logits) if trees else []
            verified = now()
            # text and stops are the engine's: they count as other
            verdicts = [stops.cut(sequence, verdict) for sequence, verdict in zip(sequences, verdicts, strict=True)]
            cut = now()
            reached = dict(zip(grown, verdicts, strict=True))
            self.cache.commit([reached.get(item.sequence.key, Verdict()) for item in work])
            for sequence, draft, rows, verdict in zip(sequences, drafts, logits, verdicts, strict=True):
                _tell(sequence, rows, verdict)
                self._commit(sequence, draft, verdict)
            for segment, rows in scores.told(step):
                _tell_prompt(segment, rows)
            for item in work:
                item.sequence.speculation.target_forwards += 1
            for part in self.drafter.parts:
                if self._looks(part, sequences):
                    part.observe(sequences, trees, verdicts, scores)
        if self.target.returns_early:
            # whoever verifies waits for the forward, beside which it takes no time
            scored = verified
        timings = Timings(drafted - began, scored - drafted, verified - scored, now() - cut, asked_s)
        self.policy.observe(sequences, trees, verdicts, timings)
        learnt = decoding and self.policy.learns
        self.costs.observe(len(step.tokens), len(work), timings, learnt=learnt)
        return [
            Outcome(sequence, grown.get(sequence.key), reached.get(sequence.key, Verdict()), timings, len(step.tokens))
            for sequence in (item.sequence for item in work)
        ]

    def _drafted(self, drafting: Many[Work]) -> tuple[list[_Draft], float]:
        """One tree per sequence: each part drafts what the policy grants, knowing what those before it proposed.

        Beside them the seconds that the drafters took.
        """
        asked_s = 0.0
        drafts = [_Draft(DraftTree.root(item.sequence.root)) for item in drafting]
        sequences = [item.sequence for item in drafting]
        named = any(sequence.drafters is not None for sequence in sequences)
        # one that may draft nothing is not decided on: it would be judged by drafts that nobody made
        roomy = [at for at, item in enumerate(drafting) if item.room.some]
        if not roomy or (not named and self.policy.skips_drafting(sequences)):
            return drafts, asked_s
        for part in self.drafter.parts:
            served = self._served(part, sequences, named)
            if len(roomy) < len(drafting):
                served = [at for at in served if drafting[at].room.some]
            if not served:
                continue
            granted = self._granted(part, [sequences[at] for at in served], [drafts[at].tree for at in served])
            asked = []
            for at, budget in zip(served, granted, strict=True):
                # most steps of a policy that drafts nothing for anyone end here
                if budget is not NOTHING and (room := budget.within(left_beside(drafts[at].tree, drafting[at].room))).some:
                    if self._draws(part, sequences[at]) and not self._prevails(part, room, drafts[at], sequences[at]):
                        continue
                    asked.append((drafts[at], drafting[at], room))
            if not asked:
                continue
            began = now()
            try:
                trees = part.propose([item.sequence for _, item, _ in asked], [budget for _, _, budget in asked])
            except OutOfPages as error:
                # of a draft's own cache, which says nothing of how much the target's may hold
                raise torch.OutOfMemoryError(str(error)) from error
            took_s = now() - began
            asked_s += took_s
            lengths = {item.sequence.key: len(item.sequence.tokens) for _, item, _ in asked}
            if not part.costly:
                # how deep it may go makes no difference, and all of it is asked for but at the end of an answer
                self.costs.looked_up(part.name, part.budget.depth, lengths, took_s)
            elif depth := max(tree.deepest for tree in trees):
                # a draft takes its time by the levels that it has, but where it is made whole
                depth = max(budget.levels for _, _, budget in asked) if part.drafts_whole else depth
                self.costs.drafted(part.name, depth, lengths, took_s)
            for (draft, item, budget), tree in zip(asked, trees, strict=True):
                # a drafter that has nothing to say costs next to nothing
                if len(tree) > 1:
                    # inside a cascade a smaller vocabulary than that of who wrote what is looked up
                    tree = _readable(tree.known(self.target.vocab_size), item.sequence).pruned(budget)
                    self._take(draft, item, part, budget, tree.until(item.sequence.stop_ids))
        free = [
            at
            for at, draft in enumerate(drafts)
            if len(draft.tree) > 1 and not draft.tree.kind.drawn and sequences[at].drafters is None
        ]
        if free:
            kept = self.policy.trimmed([sequences[at] for at in free], [drafts[at].tree for at in free])
            for at, tree in zip(free, kept, strict=True):
                drafts[at].tree = tree
        return drafts, asked_s

    def _served(self, part: Drafter, sequences: Many[Sequence], named: bool) -> Many[int]:
        """Places of the sequences for which a part may draft. named: whether any of them names its drafters."""
        # nearly always none does, and then there is nobody to ask
        if not named and part.name in self.on_request:
            return ()
        if not named and part.suits_all:
            return range(len(sequences))
        return [place for place, sequence in enumerate(sequences) if self._serves(part, sequence)]

    def _serves(self, part: Drafter, sequence: Sequence) -> bool:
        """Whether a part may draft for a sequence, and has anything to draft from."""
        if sequence.drafters is None:
            return part.name not in self.on_request and part.suits(sequence)
        return part.name in sequence.drafters and part.suits(sequence)

    def _looks(self, part: Drafter, sequences: Many[Sequence]) -> bool:
        """Whether what came of a step concerns a part: one on request has nothing to learn where nobody asked for it."""
        if part.name not in self.on_request or part.watches:
            return True
        return any(sequence.drafters is not None and part.name in sequence.drafters for sequence in sequences)

    def _granted(self, part: Drafter, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        """What a part may draft: all it wants for a request that names its drafters, else what the policy decides."""
        decided = [at for at, sequence in enumerate(sequences) if sequence.drafters is None]
        if len(decided) == len(sequences):
            return self.policy.budgets(part.part, sequences, trees)
        granted = [part.budget] * len(sequences)
        if decided:
            wishes = self.policy.budgets(part.part, [sequences[at] for at in decided], [trees[at] for at in decided])
            for at, budget in zip(decided, wishes, strict=True):
                granted[at] = budget
        return granted

    @staticmethod
    def _draws(part: Drafter, sequence: Sequence) -> bool:
        return sequence.params.temperature > 0.0 and any(kind.drawn for kind in part.kinds)

    def _prevails(self, part: Drafter, budget: Budget, draft: _Draft, sequence: Sequence) -> bool:
        """Whether a part that draws is expected to bring more than what was looked up before, which then goes.

        Together they would be point masses, and hide from a rule what was drawn from what. It is settled before anything is
        drawn, as a choice that has seen drawn tokens leaves nothing of how they were drawn.
        """
        if len(draft.tree) == 1 or draft.tree.kind.drawn:
            return True
        brought = self.depth_acceptance.brought(part.name, budget.levels, DraftContext.of(sequence.generated_tokens, True))
        if 1.0 + sum(accumulate(brought, mul)) < expected_tokens(draft.tree):
            return False
        draft.tree = DraftTree.root(sequence.root)
        return True

    def _take(self, draft: _Draft, item: Work, part: Drafter, budget: Budget, tree: DraftTree) -> None:
        """Add what one part proposed: within the room, and in a form that the target can verify."""
        chains = self._chains or (self._reads_chain and item.sequence.params.temperature > 0.0)
        if chains:
            tree = tree.first_chain()
        draft.proposed.append((part, budget.levels, tree))
        rated = self.acceptance.rated(item.sequence.key, tree)
        if draft.tree.kind.drawn and not rated.kind.drawn:
            # as in `_prevails`
            return
        merged = draft.tree.merged(rated)
        if not chains:
            draft.tree = merged.likeliest(item.room.nodes)
        elif merged.is_chain or merged.kind.drawn:
            draft.tree = merged.first_chain().first(item.room.nodes)
        else:
            # only one of both can be verified; a choice that has seen drawn tokens leaves nothing of how they were drawn
            draft.tree = max(draft.tree, rated, key=expected_tokens).undrawn().first(item.room.nodes)

    def _commit(self, sequence: Sequence, draft: _Draft, verdict: Verdict) -> None:
        """Append what was emitted, count it, and learn from it; what was drafted and accepted is counted before any cut."""
        tree = draft.tree
        sources = [tree.sources[node] for node in verdict.path] + [""] * (len(verdict.tokens) - len(verdict.path))
        sequence.commit(verdict.tokens, tuple(sources))
        sequence.finish_reason = verdict.finish
        count = sequence.speculation
        count.steps += 1
        count.emitted_tokens += len(verdict.tokens)
        if len(tree) == 1:
            # in a crowd most steps draft nothing for most sequences
            count.predicted_tokens += 1.0
        else:
            count.draft_tokens += tree.candidates - 1
            count.accepted_tokens += verdict.accepted
            count.predicted_tokens += self.policy.predicted(tree)
            count.drafted_to[tree.deepest] += 1
            count.accepted_to[verdict.accepted] += 1
        self.acceptance.go_on(sequence.key, verdict.tokens)
        if self.policy.learns:
            self._learn(sequence, draft, verdict)
        if verdict.finish is not None:
            # it may be kept for others to begin with, but none of its drafts goes on
            self.acceptance.release(sequence.key)

    def _learn(self, sequence: Sequence, draft: _Draft, verdict: Verdict) -> None:
        """See what came of what each part proposed."""
        for before, (part, granted, proposed) in enumerate(draft.proposed):
            self.acceptance.observe(sequence.key, proposed, verdict.tokens)
            # who names its drafters has drafts that nothing ends before: they say little of those of others
            if part.costly and sequence.drafters is None:
                where = DraftContext.of(sequence.generated_tokens - len(verdict.tokens), before > 0)
                self.depth_acceptance.observe(part.name, granted, proposed, verdict.tokens, where)

    def release(self, key: int) -> None:
        """Drop all state of a sequence: it ended, or it was preempted and will be computed again."""
        self.cache.release(key)
        self.drafter.release(key)
        self.policy.release(key)
        self.acceptance.release(key)
        self.costs.release(key)


@dataclass
class _Draft:
    """What is drafted for one sequence in one step: the tree that the target will see, and what each part was granted, in
    levels, and proposed."""

    tree: DraftTree
    proposed: list[tuple[Drafter, int, DraftTree]] = field(default_factory=list)


def _readable(tree: DraftTree, sequence: Sequence) -> DraftTree:
    """What was looked up, without what the grammar of its request refuses. Drafts that were drawn keep to it already, as far as
    they can, and must not be chosen from by their tokens."""
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


def _feed(item: Work, tree: DraftTree | None) -> Feed:
    tokens = item.sequence.tokens[item.start : item.start + item.count]
    return Feed(item.sequence, item.start, tuple(tokens), tree, item.sequence.tells_prompt)


def _tell(sequence: Sequence, logits: torch.Tensor, verdict: Verdict) -> None:
    """Note the log-probabilities of emitted tokens, each by the node that chose it. logits: float32 [N, V]."""
    count, tokens = sequence.params.logprobs, verdict.tokens
    if count is not None and tokens:
        sequence.logprobs += token_logprobs(logits[[0, *verdict.path][: len(tokens)]].cpu().numpy(), tokens, count)


def _tell_prompt(segment: Segment, logits: torch.Tensor) -> None:
    """Note those of prompt tokens, each by the row before it; what was told already stands. logits: float32 [R, V]."""
    sequence = segment.sequence
    known = len(sequence.prompt_logprobs)
    begin = known - segment.start - 1
    tokens = sequence.prompt[known : segment.start + 1 + len(logits)]
    if begin >= 0 and tokens:
        rows = logits[begin : begin + len(tokens)].cpu().numpy()
        sequence.prompt_logprobs += token_logprobs(rows, tokens, sequence.params.prompt_logprobs or 0)
