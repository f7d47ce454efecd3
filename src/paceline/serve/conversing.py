"""From a conversation to the choices that answer it; and, of the APIs that have a single one, to its response, whole or streamed.

All checks that can refuse a request come before anything is sent to the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence as Many
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from fastapi import Response

from paceline.serve.answer_bodies import whole
from paceline.serve.asking import Ask, Delta, Service
from paceline.serve.choices import Answer
from paceline.serve.events import Begun, EventStream, frame
from paceline.serve.lengths import characters, check_length
from paceline.serve.sampling_fields import answer_tokens, asks, check_prompts, reference_of, sampling_params
from paceline.serve.settings import Settings
from paceline.serve.thoughts import CLOSES, ThoughtTokens, is_left_open, is_open, thinks
from paceline.serve.tools import ToolPlan, behind_thought
from paceline.serve.wire.generation import Extensions

_LAST = 8
"""Tokens at the end of a prompt that are searched for the mark that opens a thought."""


async def prompt_of(
    service: Service,
    settings: Settings,
    plan: ToolPlan,
    messages: Many[Mapping[str, Any]],
    param: str,
    *,
    begun: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation with its tools. messages: as chat templates read them. begun: the last one is continued.
    variables: as in `Service.chat`.

    Raises APIError (400). param: the field that holds the messages.
    """
    conversation = plan.conversation(messages)
    check_length(characters(conversation, plan.shown, variables), settings, param)
    return await service.chat(conversation, plan.shown, answer_begun=begun, variables=variables)


def thinking_variables(service: Service, effort: str | None, given: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
    """Chat template variables that set how much the model thinks; templates use `enable_thinking` or `reasoning_effort`.

    effort: "none", or a value for `reasoning_effort`; None if the request sets none. given: variables of the request, which take
    precedence. A template that has no levels of effort may have a switch.
    """
    template, said = service.chat_template or "", dict[str, Any]()
    if effort not in (None, "none") and "reasoning_effort" in template:
        said = {"reasoning_effort": effort}
    elif effort is not None and "enable_thinking" in template:
        # agents send an effort to any model; one without levels may have a switch, or else answers as it always does
        said = {"enable_thinking": effort != "none"}
    return {**said, **(given or {})} or given


async def with_thought(service: Service, plan: ToolPlan, prompt: Many[int], continued: str | None, param: str) -> ToolPlan:
    """The plan with `opened` set: the answer begins inside a thought if the prompt opens one, or if the message that is continued
    left one open. Any other answer that a grammar binds from its first token on has no thought.

    continued: text of that message; None for a new one. Raises APIError (400). param: the field that asks for a grammar.
    """
    if not thinks(service.chat_template):
        return plan
    if continued is not None:
        opened = is_left_open(continued)
    else:
        opened = is_open(service.decode(prompt[-_LAST:], skip_special_tokens=False))
    if opened:
        return await behind_thought(service, plan, param)
    if plan.grammar is not None and not plan.free:
        return plan
    return replace(plan, opened=False, closing=await service.special_id(CLOSES))


def unanswered(service: Service, plan: ToolPlan) -> Answer:
    """An empty answer, with a counter of thought tokens if the plan expects a thought."""
    return Answer(thought=None if plan.opened is None else ThoughtTokens(plan.opened, service.piece))


async def asks_of(
    service: Service,
    settings: Settings,
    fields: Extensions,
    plan: ToolPlan,
    prompt: list[int],
    values: Mapping[str, Any],
    longest: int | None,
    param: str,
    n: int = 1,
) -> list[Ask]:
    """The asks for the n answers to a prompt. values: sampling, as `sampling_params` takes them. longest: tokens requested; by
    default the rest of the context.

    Raises APIError (400).
    """
    bound: dict[str, Any] = {"grammar": plan.grammar, "max_tokens": 1}
    if plan.keeps_special:
        bound["skip_special_tokens"] = False
    params = sampling_params(service, settings, {**values, **bound})
    most = answer_tokens(service, len(prompt), longest, settings.default_max_tokens, param)
    check_prompts(service, settings, len(prompt) * n, param)
    reference = await reference_of(service, settings, fields, n)
    return asks(prompt, params.model_copy(update={"max_tokens": most}), fields, reference, service, n)


class Growing(Protocol):
    """An answer in the format of one API, from its first token to its last. Events have their name under "type".

    beat: keep-alive bytes, sent while the first token is awaited.
    """

    @property
    def beat(self) -> bytes: ...

    @property
    def body(self) -> dict[str, Any]:
        """The whole answer, once it has ended."""
        ...

    def begin(self) -> list[dict[str, Any]]: ...

    def add(self, delta: Delta) -> list[dict[str, Any]]: ...

    def finish(self) -> list[dict[str, Any]]: ...

    def fail(self, error: Exception) -> list[dict[str, Any]]:
        """The last events of a stream that fails after it has begun."""
        ...


async def answered(service: Service, ask: Ask, growing: Growing, *, streamed: bool) -> Response:
    """Have the engine answer. Raises APIError if it fails; once a stream has begun, errors are events instead."""
    if streamed:
        begun = await Begun.of(service.submit([ask]))
        return EventStream(_frames(growing, begun), begun)
    async with aclosing(service.submit([ask])) as deltas:
        async for _, delta in deltas:
            growing.add(delta)
    growing.finish()
    return await whole(lambda: growing.body, [ask])


async def _frames(growing: Growing, deltas: Begun[tuple[int, Delta]]) -> AsyncGenerator[bytes, None]:
    try:
        for event in growing.begin():
            yield frame(event, event["type"])
        while not await deltas.came():
            yield growing.beat
        async for _, delta in deltas:
            for event in growing.add(delta):
                yield frame(event, event["type"])
        for event in growing.finish():
            yield frame(event, event["type"])
    # the status is already sent, so an error becomes an event
    except Exception as error:
        for event in growing.fail(error):
            yield frame(event, event["type"])
