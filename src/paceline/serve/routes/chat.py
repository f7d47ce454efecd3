"""POST /v1/chat/completions: conversations that the model answers with text or tool calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence as Many
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from paceline.serve.answer_bodies import whole
from paceline.serve.asking import Ask, Delta, Service
from paceline.serve.choices import Answer, collected, usage
from paceline.serve.chunks import Chunks, head
from paceline.serve.conversing import asks_of, prompt_of, thinking_variables, unanswered, with_thought
from paceline.serve.events import Begun, EventStream, beating, openai_frames, unless_gone
from paceline.serve.lengths import characters, check_length
from paceline.serve.logprob_fields import chat_entries, prompt_entries
from paceline.serve.sampling_fields import check_count, generation_values
from paceline.serve.settings import Settings
from paceline.serve.speculation_fields import metrics
from paceline.serve.speech import Speech
from paceline.serve.structured import check, param_of, wanted
from paceline.serve.tools import ToolPlan, planned
from paceline.serve.wire.chat import ChatRequest
from paceline.serve.wire.common import STREAMS, check_model


def router(service: Service, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["chat"])

    @routes.post("/v1/chat/completions", responses=STREAMS, response_class=JSONResponse)
    async def create_chat_completion(fields: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await unless_gone(request, _answered(service, settings, fields))

    return routes


async def _answered(service: Service, settings: Settings, fields: ChatRequest) -> Response:
    check_model(fields.model, service.model)
    tools, prompt, asked = await _asked(service, settings, fields)
    speeches, answers = [Speech(tools) for _ in asked], [unanswered(service, tools) for _ in asked]
    if fields.stream:
        deltas = await Begun.of(service.submit(asked))
        top = head(service, "chat.completion.chunk", "chatcmpl")
        chunks = Chunks(service, fields, top, [len(prompt)], answers)
        frames = openai_frames(_streamed(chunks, fields, speeches, prompt, deltas))
        nothing = chunks.of({"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}, Delta())
        return EventStream(beating(frames, deltas, nothing), deltas)
    await collected(service, asked, answers)
    top = head(service, "chat.completion", "chatcmpl")

    def built() -> dict[str, Any]:
        return {
            **top,
            "choices": [
                _whole(service, fields, at, speech, answer)
                for at, (speech, answer) in enumerate(zip(speeches, answers, strict=True))
            ],
            "usage": usage([len(prompt)], answers, fields.prediction is not None),
            "metrics": metrics([answer.ending for answer in answers]),
            **_of_prompt(service, fields, prompt, answers[0]),
        }

    return await whole(built, asked)


async def _asked(service: Service, settings: Settings, fields: ChatRequest) -> tuple[ToolPlan, list[int], list[Ask]]:
    """The tools, the prompt and its choices. All checks that can refuse the request are made before the engine gets it."""
    n = check_count(fields.n, settings)
    service.check_room(n)
    # before grammars are compiled; with the tools as the template shows them, it is checked again
    messages, given = fields.template_messages, fields.template_tools
    check_length(characters(messages, given), settings, "messages")
    answer = wanted(fields)
    await check(service, answer, param_of(fields))
    choice, parallel = fields.plain_choice, fields.parallel_tool_calls
    tools = await planned(service, given, choice, parallel, answer, fields.allowed_tools)
    begun = fields.continue_final_message
    variables = thinking_variables(service, fields.reasoning_effort, fields.chat_template_kwargs)
    prompt = await prompt_of(service, settings, tools, messages, "messages", begun=begun, variables=variables)
    bound = "tools" if tools.functions else param_of(fields)
    tools = await with_thought(service, tools, prompt, fields.messages[-1].text if begun else None, bound)
    values = generation_values(fields) | {"logprobs": (fields.top_logprobs or 0) if fields.logprobs else None}
    return tools, prompt, await asks_of(service, settings, fields, tools, prompt, values, fields.most_tokens, "messages", n)


def _of_prompt(service: Service, fields: ChatRequest, prompt: list[int], answer: Answer) -> dict[str, Any]:
    """The requested fields about the prompt, which all choices share."""
    entry: dict[str, Any] = {}
    if fields.return_token_ids:
        entry["prompt_token_ids"] = prompt
    if fields.prompt_logprobs is not None and answer.prompt_logprobs is not None:
        entry["prompt_logprobs"] = prompt_entries(service, answer.prompt_logprobs, fields.prompt_logprobs)
    return entry


def _whole(service: Service, fields: ChatRequest, at: int, speech: Speech, answer: Answer) -> dict[str, Any]:
    message = {
        "index": at,
        "message": speech.message(answer),
        "logprobs": {"content": chat_entries(service, answer.logprobs), "refusal": None} if fields.logprobs else None,
        "finish_reason": speech.finish_reason(answer),
        "stop_reason": answer.stop_reason,
    }
    return message | ({"token_ids": answer.tokens} if fields.return_token_ids else {})


async def _streamed(
    chunks: Chunks, fields: ChatRequest, speeches: Many[Speech], prompt: list[int], deltas: Begun[tuple[int, Delta]]
) -> AsyncGenerator[dict[str, Any], None]:
    service = chunks.service
    begun: set[int] = set()
    async for at, delta in deltas:
        answer = chunks.answers[at]
        if at not in begun:
            begun.add(at)
            role = {"role": "assistant", "content": "", "refusal": None}
            first = {"index": at, "delta": role, "logprobs": None, "finish_reason": None}
            more: dict[str, Any] = {}
            if len(begun) == 1:
                # takes seconds with log-probabilities of a long prompt
                of_prompt = (service, fields, prompt, Answer(prompt_logprobs=delta.prompt_logprobs))
                more = await asyncio.to_thread(_of_prompt, *of_prompt) if delta.prompt_logprobs else _of_prompt(*of_prompt)
            yield chunks.of(first, Delta(), **more)
        answer.add(delta)
        said = speeches[at].delta(delta.text, ended=delta.ending is not None)
        choice: dict[str, Any] = {"index": at, "delta": said, "logprobs": None, "finish_reason": None}
        last_entries = list[dict[str, Any]]()
        if delta.logprobs:
            entries = chat_entries(service, delta.logprobs)
            if delta.ending is not None and not service.decode([delta.logprobs[-1].token]):
                # an EOS has no text, but a name, which clients would show that read a chunk's text from its entries
                last_entries = [entries.pop()]
            choice["logprobs"] = {"content": entries, "refusal": None} if entries else None
        if fields.return_token_ids:
            choice["token_ids"] = list(delta.tokens)
        beside = delta.logprobs or delta.steps or (delta.tokens and (fields.return_token_ids or chunks.silent_deltas))
        if said or beside:
            yield chunks.of(choice, delta)
        answer.forget_logprobs()
        if delta.ending is not None:
            last = {"index": at, "delta": {}, "logprobs": None, "finish_reason": speeches[at].finish_reason(answer)}
            if last_entries:
                last["logprobs"] = {"content": last_entries, "refusal": None}
            yield chunks.of(last | {"stop_reason": answer.stop_reason}, Delta())
    for chunk in chunks.last():
        yield chunk
