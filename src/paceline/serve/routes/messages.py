"""POST /v1/messages and /v1/messages/count_tokens: conversations in Anthropic's format, which errors have too."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from paceline.serve.asking import Ask, Delta, Service
from paceline.serve.choices import usage
from paceline.serve.conversing import answered, asks_of, prompt_of, thinking_variables, unanswered, with_thought
from paceline.serve.events import api_error, frame, unless_gone
from paceline.serve.message_blocks import Blocks
from paceline.serve.refusals import body_of
from paceline.serve.sampling_fields import check_stops, drawing_values, extension_values
from paceline.serve.settings import Settings
from paceline.serve.speculation_fields import metrics, traced
from paceline.serve.structured import check
from paceline.serve.thoughts import thinks
from paceline.serve.tools import ToolPlan, plan as plan_of, planned
from paceline.serve.wire.common import check_model
from paceline.serve.wire.messages import MessageErrorBody, MessagesRequest, Prompting, TokenCount

PATH = "/v1/messages"
_REFUSALS: dict[int | str, dict[str, Any]] = {"4XX": {"model": MessageErrorBody}, "5XX": {"model": MessageErrorBody}}
_STREAMS: dict[int | str, dict[str, Any]] = {
    **_REFUSALS,
    200: {"content": {"application/json": {}, "text/event-stream": {}}, "description": "The message, or its stream."},
}


def router(service: Service, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["messages"])

    @routes.post(PATH, responses=_STREAMS, response_class=JSONResponse)
    async def create_message(fields: MessagesRequest, request: Request) -> Response:
        """Answer a conversation, in Anthropic's form."""
        return await unless_gone(request, _answered(service, settings, fields))

    @routes.post(f"{PATH}/count_tokens", responses=_REFUSALS)
    async def count_tokens(fields: Prompting, request: Request) -> TokenCount:
        """How many tokens a conversation has, its tools included."""
        check_model(fields.model, service.model)
        plan = plan_of(fields.plain_tools, fields.plain_choice, fields.parallel, service.chat_template)
        prompt = await unless_gone(request, _prompt(service, settings, plan, fields))
        return TokenCount(input_tokens=len(prompt))

    return routes


async def _answered(service: Service, settings: Settings, fields: MessagesRequest) -> Response:
    check_model(fields.model, service.model)
    service.check_room(1)
    grammar = fields.grammar
    await check(service, grammar, "output_config" if fields.output_config else "structured_outputs")
    plan = await planned(service, fields.plain_tools, fields.plain_choice, fields.parallel, grammar)
    prompt = await _prompt(service, settings, plan, fields)
    plan = await with_thought(service, plan, prompt, fields.continued, "tools" if plan.functions else "output_config")
    stops = tuple(fields.stop_sequences or ())
    check_stops(settings, stops, "stop_sequences")
    values = {**extension_values(fields), **drawing_values(fields.temperature, fields.top_p, fields.seed), "stop": stops}
    (ask,) = await asks_of(service, settings, fields, plan, prompt, values, fields.max_tokens, "messages")
    return await answered(service, ask, _Growing(service, fields, plan, ask), streamed=bool(fields.stream))


async def _prompt(service: Service, settings: Settings, plan: ToolPlan, fields: Prompting) -> list[int]:
    """Token ids of the conversation. Raises APIError (400)."""
    asked, template = fields.thinking, service.chat_template
    if asked is None:
        variables = None
    elif asked.type == "disabled":
        variables = thinking_variables(service, "none")
    else:
        # it may think, which a model that does not has no use for
        variables = {"enable_thinking": True} if thinks(template) else None
    effort = fields.output_config.effort if fields.output_config else None
    # the default is high, so it asks for nothing
    if effort is not None and (effort != "high" or "reasoning_effort" in (template or "")):
        variables = thinking_variables(service, effort, variables)
    begun = fields.continued is not None
    return await prompt_of(service, settings, plan, fields.template_messages, "messages", begun=begun, variables=variables)


class _Growing:
    """One message, from its first token to its last, and the events of its stream."""

    beat = frame({"type": "ping"}, "ping")

    def __init__(self, service: Service, fields: MessagesRequest, plan: ToolPlan, ask: Ask) -> None:
        self._service, self._fields, self._ask = service, fields, ask
        self._reader, self._answer = plan.reader("toolu_"), unanswered(service, plan)
        self._blocks = Blocks(tells=fields.thinking is None or fields.thinking.display != "omitted")
        self._steps: list[Any] = []
        self._head = {"id": f"msg_{secrets.token_hex(16)}", "type": "message", "role": "assistant", "model": service.model}

    @property
    def body(self) -> dict[str, Any]:
        """The whole message, once it has ended."""
        return {
            **self._head,
            "content": self._blocks.content,
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._usage(),
            "metrics": metrics([self._answer.ending]),
        }

    def begin(self) -> list[dict[str, Any]]:
        begun = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        return [{"type": "message_start", "message": begun}, {"type": "ping"}]

    def add(self, delta: Delta) -> list[dict[str, Any]]:
        """Raises APIError (500, 503) if the engine gave up the message."""
        self._answer.add(delta)
        self._steps += traced(self._service, delta)
        return self._with_steps(self._blocks.add(self._reader.feed(delta.text)))

    def finish(self) -> list[dict[str, Any]]:
        """Raises APIError (503) if the engine stopped without an ending."""
        ending = self._answer.ending
        events = [*self._blocks.add(self._reader.end()), *self._blocks.close()]
        last: dict[str, Any] = {
            "type": "message_delta",
            "delta": {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence},
            "usage": self._usage(),
        }
        if self._fields.speculation is not None:
            last["metrics"] = metrics([ending])
        return self._with_steps([*events, last, {"type": "message_stop"}])

    def fail(self, error: Exception) -> list[dict[str, Any]]:
        return [body_of(api_error(error), PATH)]

    def _with_steps(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if events and self._steps:
            events[0] = {**events[0], "speculation": {"steps": self._steps}}
            self._steps = []
        return events

    @property
    def _stop_sequence(self) -> str | None:
        stop = self._answer.ending.stop
        return stop if isinstance(stop, str) else None

    @property
    def _stop_reason(self) -> str:
        if self._answer.finish_reason != "stop":
            return "max_tokens"
        if self._stop_sequence is not None:
            return "stop_sequence"
        return "tool_use" if self._blocks.called else "end_turn"

    def _usage(self) -> dict[str, Any]:
        """Anthropic counts cached prompt tokens separately; their number is known only at the end."""
        counts = usage([len(self._ask.prompt)], [self._answer], self._fields.prediction is not None)
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        details = counts.get("completion_tokens_details", {})
        thought = details.pop("reasoning_tokens", None)
        return {
            "input_tokens": counts["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counts["completion_tokens"],
            **({} if thought is None else {"output_tokens_details": {"thinking_tokens": thought}}),
            **({"completion_tokens_details": details} if details else {}),
        }
