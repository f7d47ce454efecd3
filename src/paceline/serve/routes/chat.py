"""POST /v1/chat/completions: conversations that the model answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from paceline.serve.asking import Ask, Delta, Service
from paceline.serve.choices import Answer, collected, usage
from paceline.serve.chunks import Chunks, head
from paceline.serve.events import Begun, EventStream, Route, openai_frames, unless_gone
from paceline.serve.logprobs_told import chat_entries, prompt_entries
from paceline.serve.sampling_fields import (
    answer_tokens,
    asks,
    check_count,
    check_length,
    generation_values,
    reference_of,
    sampling_params,
)
from paceline.serve.settings import Settings
from paceline.serve.speculation_told import metrics
from paceline.serve.structured import check, param_of, wanted
from paceline.serve.wire.chat import ChatRequest
from paceline.serve.wire.common import STREAMS, check_model


def router(service: Service, settings: Settings) -> APIRouter:
    routes = APIRouter(route_class=Route, tags=["chat"])

    @routes.post("/v1/chat/completions", responses=STREAMS, response_class=JSONResponse)
    async def create_chat_completion(fields: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await unless_gone(request, _answered(service, settings, fields))

    return routes


async def _answered(service: Service, settings: Settings, fields: ChatRequest) -> Response:
    check_model(fields.model, service.model)
    prompt, asked = await _asked(service, settings, fields)
    if fields.stream:
        deltas = await Begun.of(service.submit(asked))
        top = head(service, "chat.completion.chunk", "chatcmpl")
        chunks = Chunks(service, fields, top, [len(prompt)], [Answer() for _ in asked])
        return EventStream(openai_frames(_streamed(chunks, fields, prompt, deltas)), deltas)
    answers = await collected(service, asked)
    return JSONResponse(
        {
            **head(service, "chat.completion", "chatcmpl"),
            "choices": [_whole(service, fields, at, answer) for at, answer in enumerate(answers)],
            "usage": usage([len(prompt)], answers, fields.prediction is not None),
            "metrics": metrics([answer.ending for answer in answers]),
            **_of_prompt(service, fields, prompt, answers[0]),
        }
    )


async def _asked(service: Service, settings: Settings, fields: ChatRequest) -> tuple[list[int], list[Ask]]:
    """The prompt and its choices. Everything that can be refused is, before the engine hears of any of it."""
    n = check_count(fields.n, settings)
    check_length(fields.characters, settings, "messages")
    grammar = wanted(fields)
    await check(service, grammar, param_of(fields))
    reference = await reference_of(service, fields)
    values = generation_values(fields) | {"grammar": grammar, "max_tokens": 1}
    values["logprobs"] = (fields.top_logprobs or 0) if fields.logprobs else None
    params = sampling_params(service, settings, values)
    prompt = await service.chat(fields.template_messages, fields.template_tools, answer_begun=fields.continue_final_message)
    default = settings.default_max_tokens or service.defaults.get("max_tokens")
    longest = answer_tokens(service, len(prompt), fields.most_tokens, default, "messages")
    return prompt, asks(prompt, params.model_copy(update={"max_tokens": longest}), fields, reference, service, n)


def _of_prompt(service: Service, fields: ChatRequest, prompt: list[int], answer: Answer) -> dict[str, Any]:
    """What was asked to be told of the prompt, which all choices share."""
    told: dict[str, Any] = {}
    if fields.return_token_ids:
        told["prompt_token_ids"] = prompt
    if fields.prompt_logprobs is not None and answer.prompt_logprobs is not None:
        told["prompt_logprobs"] = prompt_entries(service, answer.prompt_logprobs, fields.prompt_logprobs)
    return told


def _whole(service: Service, fields: ChatRequest, at: int, answer: Answer) -> dict[str, Any]:
    told = {
        "index": at,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": {"content": chat_entries(service, answer.logprobs), "refusal": None} if fields.logprobs else None,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    return told | ({"token_ids": answer.tokens} if fields.return_token_ids else {})


async def _streamed(
    chunks: Chunks, fields: ChatRequest, prompt: list[int], deltas: Begun[tuple[int, Delta]]
) -> AsyncGenerator[dict[str, Any], None]:
    service = chunks.service
    begun: set[int] = set()
    async for at, delta in deltas:
        answer = chunks.answers[at]
        if at not in begun:
            begun.add(at)
            role = {"role": "assistant", "content": "", "refusal": None}
            first = {"index": at, "delta": role, "logprobs": None, "finish_reason": None}
            more = {} if len(begun) > 1 else _of_prompt(service, fields, prompt, Answer(prompt_logprobs=delta.prompt_logprobs))
            yield chunks.of(first, Delta(), **more)
        answer.add(delta)
        told: dict[str, Any] = {"index": at, "delta": {}, "logprobs": None, "finish_reason": None}
        if delta.text:
            told["delta"] = {"content": delta.text}
        if delta.logprobs:
            told["logprobs"] = {"content": chat_entries(service, delta.logprobs), "refusal": None}
        if fields.return_token_ids:
            told["token_ids"] = list(delta.tokens)
        if delta.tokens or delta.text:
            silent = not (delta.text or delta.logprobs or delta.steps or fields.return_token_ids or chunks.silent_deltas)
            if not silent:
                yield chunks.of(told, delta)
        if delta.ending is not None:
            last = {"index": at, "delta": {}, "logprobs": None, "finish_reason": answer.finish_reason}
            yield chunks.of(last | {"stop_reason": answer.stop_reason}, Delta())
    for chunk in chunks.last():
        yield chunk
