"""Running: one ask inside the engine's process, and the deltas made from the steps of its sequence."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.engine.engine import Progress
from paceline.sequence import Sequence
from paceline.serve.asking import Ask, Delta, Drafted, Ending, StepTrace
from paceline.step import Verdict
from paceline.tree import DraftTree

REFERENCE = "reference"
"""The drafter that drafts from a request's predicted answer."""


@dataclass
class Running:
    """number: the server's number of the ask. facts: names of drafter, verifier etc. for `Ending.speculation`."""

    number: int
    ask: Ask
    sequence: Sequence
    facts: dict[str, Any]
    came_s: float
    """When it was admitted to the queue, on the clock of `monotonic`."""
    begun: bool = False
    """Whether a step has processed it."""
    shown_chars: int = 0
    told_tokens: int = 0
    told_prompt: bool = False
    referred_tokens: int = 0
    """Tokens drafted from its reference so far."""

    def delta(self, progress: Progress) -> Delta | None:
        """The output of a step; None while the prompt is being processed."""
        sequence, tree = self.sequence, progress.outcome.tree
        if tree is None:
            return None
        if self.ask.reference:
            self.referred_tokens += tree.sources[: tree.candidates].count(REFERENCE)
        low = self.told_tokens
        tokens = tuple(sequence.tokens[len(sequence.prompt) + low :])
        text = progress.text[self.shown_chars :]
        self.told_tokens, self.shown_chars = low + len(tokens), len(progress.text)
        params = sequence.params
        prompt_logprobs = None
        if params.prompt_logprobs is not None and not self.told_prompt:
            self.told_prompt, prompt_logprobs = True, tuple(sequence.prompt_logprobs)
        return Delta(
            text=text,
            tokens=tokens,
            sources=tuple(sequence.sources[low:]) if self.ask.trace else (),
            logprobs=tuple(sequence.logprobs[low:]) if params.logprobs is not None else None,
            prompt_logprobs=prompt_logprobs,
            steps=(self._trace(progress, tree, len(tokens)),) if self.ask.trace else (),
            ending=self.ending(error=progress.error) if progress.finished else None,
        )

    def _trace(self, progress: Progress, tree: DraftTree, emitted: int) -> StepTrace:
        outcome = progress.outcome
        return StepTrace(
            emitted=emitted,
            drafted=tree.candidates - 1,
            accepted=outcome.verdict.accepted,
            rejected=_rejected(tree, outcome.verdict),
            draft_s=outcome.timings.draft_s,
            forward_s=outcome.timings.forward_s,
            verify_s=outcome.timings.verify_s,
            rows=outcome.rows,
        )

    def ending(self, reason: str | None = None, error: Exception | None = None) -> Ending:
        """The ending. reason: overrides the sequence's own. error: for which the engine gave it up."""
        sequence = self.sequence
        accepted = sequence.sources.count(REFERENCE) if self.ask.reference else 0
        return Ending(
            reason="error" if error is not None else reason or sequence.finish_reason or "abort",
            seed=sequence.seed,
            stop=sequence.stop,
            cached_tokens=sequence.cached_tokens,
            accepted_reference_tokens=accepted,
            rejected_reference_tokens=self.referred_tokens - accepted,
            speculation={**_counts(sequence), **self.facts},
            error=None if error is None else str(error),
        )


def _counts(sequence: Sequence) -> dict[str, Any]:
    """Speculation counts by the names that vLLM's clients read, plus tau and the acceptance by depth."""
    done = sequence.speculation
    # reached[k]: steps that accepted at least k tokens
    reached = [done.steps, *filter(None, done.accepted_by_depth), 0]
    return {
        "mean_acceptance_length": 1 + done.accepted_tokens / max(done.steps, 1),
        "draft_acceptance_rate": done.accepted_tokens / max(done.draft_tokens, 1),
        "acceptance_histogram": [more - most for more, most in pairwise(reached)],
        "num_spec_steps": done.steps,
        "num_accepted_draft_tokens": done.accepted_tokens,
        "num_draft_tokens": done.draft_tokens,
        "num_spec_tokens": len(done.drafted_by_depth),
        "tau": done.tau,
        "acceptance_by_depth": done.acceptance_by_depth,
        "drafted_by_depth": done.drafted_by_depth,
    }


def _rejected(tree: DraftTree, verdict: Verdict) -> Drafted:
    """The candidates that are not on the accepted path."""
    places = {0: -1, **{node: -1 - count for count, node in enumerate(verdict.path, 1)}}
    nodes = [node for node in range(1, tree.candidates) if node not in places]
    places |= {node: place for place, node in enumerate(nodes)}
    return Drafted(
        tuple(tree.tokens[node] for node in nodes),
        tuple(places[tree.parents[node]] for node in nodes),
        tuple(tree.sources[node] for node in nodes),
    )
