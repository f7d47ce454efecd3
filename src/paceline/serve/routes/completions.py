"""POST /v1/completions: texts that the model continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence as Many
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from paceline.serve.answer_bodies import whole
from paceline.serve.asking import Ask, Delta, Service
from paceline.serve.choices import Answer, collected, usage
from paceline.serve.chunks import Chunks, head
from paceline.serve.errors import invalid
from paceline.serve.events import Begun, EventStream, beating, openai_frames, unless_gone
from paceline.serve.lengths import check_length
from paceline.serve.logprob_fields import CompletionLogprobs, joined, prompt_entries
from paceline.serve.sampling_fields import (
    answer_tokens,
    asks,
    check_count,
    check_prompts,
    generation_values,
    reference_of,
    sampling_params,
    seed_of,
)
from paceline.serve.settings import Settings
from paceline.serve.speculation_fields import metrics
from paceline.serve.structured import check, param_of, wanted
from paceline.serve.wire.common import STREAMS, check_model
from paceline.serve.wire.completions import CompletionRequest

_DEFAULT_MAX_TOKENS = 16


def router(service: Service, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["completions"])

    @routes.post("/v1/completions", responses=STREAMS, response_class=JSONResponse)
    async def create_completion(fields: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        return await unless_gone(request, _answered(service, settings, fields))

    return routes


@dataclass
class _Choice:
    """One choice: the prompt it continues, and the state of its log-probabilities (offsets in its text)."""

    prompt: list[int]
    echoed: str
    logprobs: CompletionLogprobs | None
    begun: bool = False


async def _answered(service: Service, settings: Settings, fields: CompletionRequest) -> Response:
    check_model(fields.model, service.model)
    asked, choices = await _asked(service, settings, fields)
    prompts = [len(choice.prompt) for choice in choices[:: fields.n or 1]]
    top, answers = head(service, "text_completion", "cmpl"), [Answer() for _ in asked]
    if fields.stream:
        deltas = await Begun.of(service.submit(asked))
        chunks = Chunks(service, fields, top, prompts, answers)
        frames = openai_frames(_streamed(chunks, fields, choices, deltas))
        nothing = chunks.of({"index": 0, "text": "", "logprobs": None, "finish_reason": None}, Delta())
        return EventStream(beating(frames, deltas, nothing), deltas)
    await collected(service, asked, answers)
    if fields.max_tokens == 0:
        for answer in answers:
            answer.text, answer.tokens, answer.logprobs = "", [], []

    def built() -> dict[str, Any]:
        return {
            **top,
            "choices": [
                _whole(service, fields, at, choice, answer)
                for at, (choice, answer) in enumerate(zip(choices, answers, strict=True))
            ],
            "usage": usage(prompts, answers, fields.prediction is not None),
            "metrics": metrics([answer.ending for answer in answers]),
        }

    return await whole(built, asked)


async def _asked(service: Service, settings: Settings, fields: CompletionRequest) -> tuple[list[Ask], list[_Choice]]:
    """The asks and their choices. All checks that can refuse the request are made before the engine gets it."""
    n, prompts = check_count(fields.n, settings), fields.prompts
    if len(prompts) > settings.max_prompts:
        raise invalid(f"'prompt' may hold at most {settings.max_prompts} prompts", "prompt")
    service.check_room(n * len(prompts))
    check_length(sum(len(one) for one in prompts if isinstance(one, str)), settings, "prompt")
    grammar = wanted(fields)
    await check(service, grammar, param_of(fields))
    reference = await reference_of(service, settings, fields, n * len(prompts))
    values = generation_values(fields) | {"logprobs": fields.logprobs, "grammar": grammar, "max_tokens": 1}
    if fields.echo and fields.logprobs is not None:
        values["prompt_logprobs"] = max(fields.logprobs, fields.prompt_logprobs or 0)
    params = sampling_params(service, settings, values)
    default = settings.default_max_tokens or _DEFAULT_MAX_TOKENS
    asked, choices, tokens = [], [], 0
    for at, prompt in enumerate(prompts):
        # without a seed in the request, equal prompts must not get equal answers
        seed = seed_of(params.seed, "prompt", at) if at and fields.seed is None else params.seed
        ids = await _ids(service, fields, prompt)
        # the engine generates at least one token; with max_tokens 0 it is left out of the answer
        longest = max(1, answer_tokens(service, len(ids), fields.max_tokens, default, "prompt"))
        tokens += len(ids) * n
        check_prompts(service, settings, tokens, "prompt")
        asked += asks(ids, params.model_copy(update={"max_tokens": longest, "seed": seed}), fields, reference, service, n)
        echoed = (prompt if isinstance(prompt, str) else service.decode(ids, skip_special_tokens=False)) if fields.echo else ""
        for _ in range(n):
            logprobs = (
                None if fields.logprobs is None else CompletionLogprobs(service, fields.logprobs, params.skip_special_tokens)
            )
            choices.append(_Choice(ids, echoed, logprobs))
    return asked, choices


async def _ids(service: Service, fields: CompletionRequest, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        ids = await service.encode(prompt, fields.add_special_tokens)
        if not ids:
            raise invalid("'prompt' is empty: there is nothing to continue", "prompt")
        return ids
    if (largest := max(prompt)) >= service.vocab_size:
        raise invalid(f"'prompt' holds token {largest}; the model has {service.vocab_size}", "prompt")
    return prompt


def _whole(service: Service, fields: CompletionRequest, at: int, choice: _Choice, answer: Answer) -> dict[str, Any]:
    logprobs = None
    if choice.logprobs is not None:
        parts = [_echo_logprobs(choice, answer)] if fields.echo else []
        logprobs = joined(*parts, choice.logprobs.answer(answer.logprobs))
    entry = {
        "index": at,
        "text": choice.echoed + answer.text,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason if fields.max_tokens != 0 else "length",
        "stop_reason": answer.stop_reason if fields.max_tokens != 0 else None,
    }
    if fields.return_token_ids:
        entry |= {"prompt_token_ids": choice.prompt, "token_ids": answer.tokens}
    return entry | _prompt_logprobs(service, fields, answer)


def _echo_logprobs(choice: _Choice, answer: Answer) -> dict[str, list[Any]]:
    assert choice.logprobs is not None
    return choice.logprobs.prompt(choice.echoed, choice.prompt, answer.prompt_logprobs or [None] * len(choice.prompt))


def _prompt_logprobs(service: Service, fields: CompletionRequest, answer: Answer) -> dict[str, Any]:
    if fields.prompt_logprobs is None or answer.prompt_logprobs is None:
        return {}
    return {"prompt_logprobs": prompt_entries(service, answer.prompt_logprobs, fields.prompt_logprobs)}


async def _streamed(
    chunks: Chunks, fields: CompletionRequest, choices: Many[_Choice], deltas: Begun[tuple[int, Delta]]
) -> AsyncGenerator[dict[str, Any], None]:
    async for at, delta in deltas:
        choice, answer = choices[at], chunks.answers[at]
        if fields.max_tokens == 0:
            delta = replace(delta, text="", tokens=(), sources=(), logprobs=(), steps=())
        answer.add(delta)
        entry = {"index": at, "text": delta.text, "logprobs": None, "finish_reason": None}
        parts: list[dict[str, list[Any]]] = []
        if not choice.begun:
            choice.begun = True
            entry["text"] = choice.echoed + delta.text
            if fields.echo and choice.logprobs is not None:
                # takes seconds for a long prompt, as does the call below
                parts.append(await asyncio.to_thread(_echo_logprobs, choice, answer))
            if answer.prompt_logprobs:
                entry |= await asyncio.to_thread(_prompt_logprobs, chunks.service, fields, answer)
            entry |= {"prompt_token_ids": choice.prompt} if fields.return_token_ids else {}
        if choice.logprobs is not None and delta.tokens:
            parts.append(choice.logprobs.answer(delta.logprobs or ()))
        if parts:
            entry["logprobs"] = joined(*parts)
        if fields.return_token_ids:
            entry["token_ids"] = list(delta.tokens)
        if delta.ending is not None:
            entry["finish_reason"] = answer.finish_reason if fields.max_tokens != 0 else "length"
            entry["stop_reason"] = answer.stop_reason if fields.max_tokens != 0 else None
        says = entry["text"] or parts or delta.steps or delta.ending or "prompt_logprobs" in entry
        if says or fields.return_token_ids or chunks.silent_deltas:
            yield chunks.of(entry, delta)
        answer.forget_logprobs()
    for chunk in chunks.last():
        yield chunk
