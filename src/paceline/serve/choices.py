"""Choices of a request as they are generated: the output of each so far, and the usage over all of them."""

from __future__ import annotations

from collections.abc import Sequence as Many
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from paceline.logprobs import TokenLogprobs
from paceline.serve.asking import Ask, Delta, Ending, Service
from paceline.serve.errors import APIError
from paceline.serve.thoughts import ThoughtTokens


@dataclass
class Answer:
    """One choice, accumulated from its deltas. thought: counts its thought tokens; None if it cannot contain a thought."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    ended: Ending | None = None
    thought: ThoughtTokens | None = None

    def add(self, delta: Delta) -> None:
        """Raises APIError if the engine gave up the choice: 500 after an error, 503 if a retry may succeed."""
        self.text += delta.text
        self.tokens += delta.tokens
        if self.thought is not None:
            self.thought.see(delta.tokens)
        self.logprobs += delta.logprobs or ()
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        self.ended = delta.ending or self.ended
        if self.ended is not None and self.ended.error is not None:
            raise APIError(500, self.ended.error, code="engine_error")
        if self.ended is not None and self.ended.reason == "abort":
            raise APIError(503, "the server gave this request up before it was answered", code="aborted", retry_after_s=1)

    def forget_logprobs(self) -> None:
        """Called once a stream has sent them: each takes half a kilobyte and is not needed again."""
        self.logprobs, self.prompt_logprobs = [], None

    @property
    def ending(self) -> Ending:
        if self.ended is None:
            raise APIError(503, "the engine stopped before it had answered", code="aborted", retry_after_s=1)
        return self.ended

    @property
    def finish_reason(self) -> str:
        """ "stop" or "length", OpenAI's names; a timeout counts as "length", and `stop_reason` is then "timeout"."""
        return "stop" if self.ending.reason == "stop" else "length"

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or token that ended it, "timeout", or None."""
        return "timeout" if self.ending.reason == "timeout" else self.ending.stop


async def collected(service: Service, asks: Many[Ask], answers: Many[Answer]) -> None:
    """Run all choices to their ends. answers: one per ask, filled here. Raises APIError as `Service.submit` and `Answer` do."""
    async with aclosing(service.submit(asks)) as deltas:
        async for choice, delta in deltas:
            answers[choice].add(delta)
    for answer in answers:
        _ = answer.ending


def usage(prompts: Many[int], answers: Many[Answer], predicted: bool) -> dict[str, Any]:
    """OpenAI's usage. prompts: their lengths in tokens. answers: grouped by prompt, equally many for each.

    A prompt counts once, however many choices it has. Thought tokens are part of `completion_tokens`; rejected tokens of a
    prediction are reported but are not part of it.
    """
    generated = sum(len(answer.tokens) for answer in answers)
    each = len(answers) // len(prompts)
    firsts = [answer.ended for answer in answers[::each] if answer.ended]
    counts: dict[str, Any] = {
        "prompt_tokens": sum(prompts),
        "completion_tokens": generated,
        "total_tokens": sum(prompts) + generated,
        "prompt_tokens_details": {"cached_tokens": sum(ending.cached_tokens for ending in firsts)},
    }
    details: dict[str, int] = {}
    if thoughts := [answer.thought for answer in answers if answer.thought is not None]:
        details["reasoning_tokens"] = sum(thought.count for thought in thoughts)
    if predicted:
        endings = [answer.ended for answer in answers if answer.ended]
        details["accepted_prediction_tokens"] = sum(ending.accepted_reference_tokens for ending in endings)
        details["rejected_prediction_tokens"] = sum(ending.rejected_reference_tokens for ending in endings)
    return counts | ({"completion_tokens_details": details} if details else {})
