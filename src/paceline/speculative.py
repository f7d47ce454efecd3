"""Speculative: the step, as one straight sequence of calls. There is no other loop; plain decoding uses the null drafter.

What is drafted, and by which drafter, is decided in `drafting`.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from contextlib import ExitStack
from typing import Protocol

import torch

from paceline.cache.base import KVCache
from paceline.clock import now
from paceline.drafters.base import Drafter
from paceline.drafting import Draft, Drafting, Work
from paceline.frozen import frozen
from paceline.kernels.choices.logprobs import TOKEN_LOGPROBS, token_logprobs
from paceline.kernels.compiled import available
from paceline.kernels.precompiled import CHOICES
from paceline.learning.costs import Timings
from paceline.learning.depth_acceptance import DraftContext
from paceline.models.base import LanguageModel
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.step import Feed, Segment, Step, Verdict
from paceline.tree import DraftTree
from paceline.verifiers.base import Verifier


@frozen
class Outcome:
    """The result of one step for one sequence. tree: None for a prefill chunk. timings, rows: of the whole step."""

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
    """A target, the drafters that run ahead of it, and the caches and the verifier between them.

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
        self._drafting = Drafting(target, drafter, verifier, policy, on_request)
        # compiled now, and not in the first step that samples; on a GPU the target's own choices are made there
        available(*((TOKEN_LOGPROBS,) if target.returns_early else CHOICES), *verifier.kernels)

    def step(self, work: Many[Work], stops: Stops) -> list[Outcome]:
        """Draft, score, verify, cut and commit once for a batch: one target forward, prefill chunks included."""
        began = now()
        drafting = [item for item in work if item.reaches_root]
        if drafting:
            self.costs.curve.behind(sum([item.start for item in drafting]), len(drafting))
        self.policy.begin(sum([item.rows for item in work]), len(drafting))
        drafts, asked_s = self._drafting.draft(drafting)
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
            # text and stops belong to the engine: their time counts as other
            verdicts = [stops.cut(sequence, verdict) for sequence, verdict in zip(sequences, verdicts, strict=True)]
            cut = now()
            reached = dict(zip(grown, verdicts, strict=True))
            self.cache.commit([reached.get(item.sequence.key, Verdict()) for item in work])
            for sequence, draft, rows, verdict in zip(sequences, drafts, logits, verdicts, strict=True):
                _tell(sequence, rows, verdict)
                self._commit(sequence, draft, verdict)
            for segment, rows in scores.of_prompts(step):
                _tell_prompt(segment, rows)
            for item in work:
                item.sequence.speculation.target_forwards += 1
            for part in self.drafter.parts:
                if self._looks(part, sequences):
                    part.observe(sequences, trees, verdicts, scores)
        if self.target.returns_early:
            # the verifier waits for the forward to end, beside which its own time does not count
            scored = verified
        timings = Timings(drafted - began, scored - drafted, verified - scored, now() - cut, asked_s)
        self.policy.observe(sequences, trees, verdicts, timings)
        learnt = decoding and self.policy.learns
        self.costs.observe(len(step.tokens), len(work), timings, learnt=learnt)
        return [
            Outcome(sequence, grown.get(sequence.key), reached.get(sequence.key, Verdict()), timings, len(step.tokens))
            for sequence in (item.sequence for item in work)
        ]

    def _looks(self, part: Drafter, sequences: Many[Sequence]) -> bool:
        """Whether a part observes a step: one that drafts only on request has nothing to learn where no sequence names it."""
        if part.name not in self.on_request or part.watches:
            return True
        return any(sequence.drafters is not None and part.name in sequence.drafters for sequence in sequences)

    def _commit(self, sequence: Sequence, draft: Draft, verdict: Verdict) -> None:
        """Append the emitted tokens, count them and learn from them; drafted and accepted tokens are counted before any cut."""
        tree = draft.tree
        sources = [tree.sources[node] for node in verdict.path] + [""] * (len(verdict.tokens) - len(verdict.path))
        sequence.commit(verdict.tokens, tuple(sources))
        sequence.finish_reason = verdict.finish
        count = sequence.speculation
        count.steps += 1
        count.emitted_tokens += len(verdict.tokens)
        if len(tree) == 1:
            # in large batches most steps draft nothing for most sequences
            count.predicted_tokens += 1.0
        else:
            count.draft_tokens += tree.candidates - 1
            count.accepted_tokens += verdict.accepted
            count.predicted_tokens += self.policy.predicted(tree)
            count.drafted(tree.deepest, verdict.accepted)
        self.acceptance.go_on(sequence.key, verdict.tokens)
        if self.policy.learns:
            self._learn(sequence, draft, verdict)
        if verdict.finish is not None:
            # it may be kept as a prefix for others, but is drafted for no more
            self.acceptance.release(sequence.key)

    def _learn(self, sequence: Sequence, draft: Draft, verdict: Verdict) -> None:
        """Learn how much of what each part proposed was right."""
        for before, (part, granted, proposed) in enumerate(draft.proposed):
            self.acceptance.observe(sequence.key, proposed, verdict.tokens)
            # no policy ends the drafts of a request that names its drafters, so they say little about other drafts
            if part.costly and sequence.drafters is None:
                where = DraftContext.of(sequence.generated_tokens - len(verdict.tokens), before > 0)
                self.depth_acceptance.observe(part.name, granted, proposed, verdict.tokens, where)

    def release(self, key: int) -> None:
        """Drop all state of a sequence: it ended, or it was preempted and will be computed again."""
        # whatever a user's own drafter raises, the others release their state
        with ExitStack() as released:
            for holder in (self.cache, self.drafter, self.policy, self.acceptance, self.costs):
                released.callback(holder.release, key)


def _feed(item: Work, tree: DraftTree | None) -> Feed:
    tokens = item.sequence.tokens[item.start : item.start + item.count]
    return Feed(item.sequence, item.start, tuple(tokens), tree, item.sequence.tells_prompt)


def _tell(sequence: Sequence, logits: torch.Tensor, verdict: Verdict) -> None:
    """Note the log-probabilities of emitted tokens, each by the node that chose it. logits: float32 [N, V]."""
    count, tokens = sequence.params.logprobs, verdict.tokens
    if count is not None and tokens:
        sequence.logprobs += token_logprobs(logits[[0, *verdict.path][: len(tokens)]].cpu().numpy(), tokens, count)


def _tell_prompt(segment: Segment, logits: torch.Tensor) -> None:
    """Note the log-probabilities of prompt tokens that are still missing, each by the row before it. logits: float32 [R, V]."""
    sequence = segment.sequence
    known = len(sequence.prompt_logprobs)
    begin = known - segment.start - 1
    tokens = sequence.prompt[known : segment.start + 1 + len(logits)]
    if begin >= 0 and tokens:
        rows = logits[begin : begin + len(tokens)].cpu().numpy()
        sequence.prompt_logprobs += token_logprobs(rows, tokens, sequence.params.prompt_logprobs or 0)
