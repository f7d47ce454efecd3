"""POST /v1/responses: conversations that the model answers, in OpenAI's newer format; nothing is stored."""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from paceline.serve.asking import Ask, Delta, Service
from paceline.serve.choices import usage
from paceline.serve.conversing import answered, asks_of, prompt_of, thinking_variables, unanswered, with_thought
from paceline.serve.events import BEAT, api_error, unless_gone
from paceline.serve.logprob_fields import chat_entries
from paceline.serve.response_items import Items
from paceline.serve.sampling_fields import generation_values
from paceline.serve.settings import Settings
from paceline.serve.speculation_fields import metrics, traced
from paceline.serve.structured import check, param_of
from paceline.serve.tools import ToolPlan, planned
from paceline.serve.wire.common import STREAMS, check_model
from paceline.serve.wire.responses import ResponsesRequest


def router(service: Service, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["responses"])

    @routes.post("/v1/responses", responses=STREAMS, response_class=JSONResponse)
    async def create_response(fields: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation, and keep nothing of it."""
        return await unless_gone(request, _answered(service, settings, fields))

    return routes


async def _answered(service: Service, settings: Settings, fields: ResponsesRequest) -> Response:
    check_model(fields.model, service.model)
    service.check_room(1)
    grammar = fields.grammar
    await check(service, grammar, "text.format" if fields.text and fields.text.format else param_of(fields))
    tools, choice, allowed = fields.plain_tools, fields.plain_choice, fields.allowed_tools
    plan = await planned(service, tools, choice, fields.parallel_tool_calls, grammar, allowed)
    variables = thinking_variables(service, fields.effort)
    prompt = await prompt_of(service, settings, plan, fields.template_messages, "input", variables=variables)
    plan = await with_thought(service, plan, prompt, None, "tools" if plan.functions else "text.format")
    values = generation_values(fields) | {"logprobs": (fields.top_logprobs or 0) if fields.tells_logprobs else None}
    (ask,) = await asks_of(service, settings, fields, plan, prompt, values, fields.max_output_tokens, "input")
    return await answered(service, ask, _Growing(service, fields, plan, ask), streamed=bool(fields.stream))


class _Growing:
    """One response, from its first token to its last, and the events of its stream."""

    beat = BEAT

    def __init__(self, service: Service, fields: ResponsesRequest, plan: ToolPlan, ask: Ask) -> None:
        self._service, self._fields = service, fields
        self._reader, self._items, self._answer = plan.reader(), Items(fields.namespaced), unanswered(service, plan)
        self._ask = ask
        self._numbered = 0
        self._steps: list[Any] = []
        self._head = _echo(service, fields, ask)

    @property
    def body(self) -> dict[str, Any]:
        """The response in its current state."""
        ended = self._answer.ended
        if ended is None:
            return {**self._head, "status": "in_progress", "output": []}
        whole = self._answer.finish_reason == "stop"
        return {
            **self._head,
            "status": "completed" if whole else "incomplete",
            **({"completed_at": int(time.time())} if whole else {}),
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "output": self._items.output,
            "usage": self._usage(),
            "metrics": metrics([ended]),
        }

    def begin(self) -> list[dict[str, Any]]:
        return self._numbered_events(
            [{"type": "response.created", "response": self.body}, {"type": "response.in_progress", "response": self.body}]
        )

    def add(self, delta: Delta) -> list[dict[str, Any]]:
        """Raises APIError (500, 503) if the engine gave up the response."""
        thought = self._answer.thought
        before = thought.count if thought else 0
        self._answer.add(delta)
        self._steps += traced(self._service, delta)
        logprobs = chat_entries(self._service, delta.logprobs or ())
        self._answer.forget_logprobs()
        thought_of = thought.count - before if thought else 0
        return self._numbered_events(self._items.add(self._reader.feed(delta.text), logprobs, thought_of))

    def finish(self) -> list[dict[str, Any]]:
        """Raises APIError (503) if the engine stopped without an ending."""
        cut = self._answer.finish_reason != "stop"
        events = [*self._items.add(self._reader.end()), *self._items.finish(cut)]
        kind = "response.incomplete" if cut else "response.completed"
        return self._numbered_events([*events, {"type": kind, "response": self.body}])

    def fail(self, error: Exception) -> list[dict[str, Any]]:
        # the open item stays incomplete
        self._items.close("incomplete")
        described = {"code": "server_error", "message": api_error(error).message}
        failed = {**self._head, "status": "failed", "error": described, "output": self._items.output}
        return self._numbered_events([{"type": "response.failed", "response": failed}])

    def _numbered_events(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        numbered = [{**event, "sequence_number": self._numbered + at} for at, event in enumerate(events)]
        self._numbered += len(numbered)
        if numbered and self._steps:
            numbered[0]["speculation"] = {"steps": self._steps}
            self._steps = []
        return numbered

    def _usage(self) -> dict[str, Any]:
        counts = usage([len(self._ask.prompt)], [self._answer], self._fields.prediction is not None)
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0, **counts.get("completion_tokens_details", {})},
            "total_tokens": counts["total_tokens"],
        }


def _echo(service: Service, fields: ResponsesRequest, ask: Ask) -> dict[str, Any]:
    """The fields of the request that a response repeats, with defaults filled in."""
    text = fields.text.model_dump(by_alias=True, exclude_none=True) if fields.text else {}
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "model": service.model,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": fields.effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": ask.params.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": fields.told_choice,
        "tools": fields.told_tools,
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": ask.params.top_p,
        "truncation": "disabled",
    }
