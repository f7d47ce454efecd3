"""From the fields of a request to asks for the engine: sampling parameters, choices and their seeds."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence as Many
from typing import Any

from pydantic import ValidationError

from paceline.errors import validators_words
from paceline.noise import stream
from paceline.params import LEAST_TEMPERATURE, SamplingParams
from paceline.serve.asking import Ask, Service
from paceline.serve.errors import TooLong, invalid
from paceline.serve.settings import Settings
from paceline.serve.wire.generation import Extensions, Generation

_API_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}
_SEED_BITS = 53
"""JavaScript cannot read larger integers exactly from JSON, and a reported seed must be usable in a new request."""
_LEAST_TOP_P = 1e-9
"""OpenAI's top_p may be 0, which means the likeliest token alone."""


def extension_values(fields: Extensions) -> dict[str, Any]:
    """Values by the names of `SamplingParams`; None for what the request does not set."""
    return {
        # other servers write "no limit" as -1
        "top_k": 0 if fields.top_k == -1 else fields.top_k,
        "min_p": fields.min_p,
        "repetition_penalty": fields.repetition_penalty,
        "min_tokens": fields.min_tokens,
        "ignore_eos": fields.ignore_eos,
        "stop_token_ids": None if fields.stop_token_ids is None else frozenset(fields.stop_token_ids),
        "include_stop_str_in_output": fields.include_stop_str_in_output,
        "skip_special_tokens": fields.skip_special_tokens,
    }


def drawing_values(temperature: float | None, top_p: float | None, seed: int | None) -> dict[str, Any]:
    """Values for drawing tokens that every API has."""
    return {
        # some clients send 1e-8 for greedy decoding
        "temperature": 0.0 if temperature is not None and temperature < LEAST_TEMPERATURE else temperature,
        "top_p": None if top_p is None else max(top_p, _LEAST_TOP_P),
        "seed": None if seed is None else seed % 2**64,
    }


def generation_values(fields: Generation) -> dict[str, Any]:
    """All values except max_tokens, logprobs and grammar, which each endpoint reads in its own way."""
    return {
        **extension_values(fields),
        **drawing_values(fields.temperature, fields.top_p, fields.seed),
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "logit_bias": None if fields.logit_bias is None else {int(token): bias for token, bias in fields.logit_bias.items()},
        "stop": fields.stops,
        "prompt_logprobs": fields.prompt_logprobs,
    }


def check_stops(settings: Settings, stops: Many[str], name: str) -> None:
    """Raises APIError (400) if there are too many. name: of the request's field."""
    if len(stops) > settings.max_stop:
        raise invalid(f"'{name}' may hold at most {settings.max_stop} strings", name)


def sampling_params(service: Service, settings: Settings, values: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters from the request, else the model's generation_config.json, else the API's defaults.

    values: of the request, None for what it does not set. Without a seed one is drawn, so that the answer can be reproduced.
    Raises APIError (400) that names the field.
    """
    said = {name: value for name, value in values.items() if value is not None}
    known = {name: value for name, value in service.defaults.items() if name in SamplingParams.model_fields}
    merged = {**_API_DEFAULTS, "seed": secrets.randbits(_SEED_BITS), **known, **said}
    check_stops(settings, merged.get("stop", ()), "stop")
    for name in ("logit_bias", "stop_token_ids"):
        for token in merged.get(name, ()):
            if token >= service.vocab_size:
                raise invalid(f"'{name}' names token {token}; the model has {service.vocab_size}", name)
    try:
        return SamplingParams(**merged)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        raise invalid(f"'{name}': {validators_words(first['msg'])}", name) from None


def answer_tokens(service: Service, prompt_tokens: int, asked: int | None, default: int | None, param: str) -> int:
    """Most tokens of an answer: as requested, or `default`, and never more than the context has left.

    Raises APIError (400) if the prompt leaves no room for a token. param: the field with the prompt.
    """
    room = service.context_length - prompt_tokens
    if room < 1:
        limit = f"this model's maximum context length is {service.context_length} tokens, answer included"
        raise TooLong(f"{limit}; the prompt has {prompt_tokens}", param, prompt_tokens, service.context_length - 1, "tokens")
    wanted = asked if asked is not None else default
    return room if wanted is None else min(wanted, room)


def check_prompts(service: Service, settings: Settings, tokens: int, param: str) -> None:
    """Raises APIError (400) if the prompts of a request are too long together; a single prompt that fits the context never is.
    tokens: of the prompts of all choices, since the engine gets a copy with each. param: the field with the prompts."""
    most = max(settings.max_prompt_chars, service.context_length)
    if tokens > most:
        raise invalid(f"the prompts of all choices have {tokens} tokens; the server takes at most {most} together", param)


def seed_of(seed: int | None, name: str, at: int) -> int:
    """A seed derived from the request's seed, which is not None any more here."""
    assert seed is not None
    return stream(seed, name, at) & (2**_SEED_BITS - 1)


def asks(
    prompt: Many[int], params: SamplingParams, fields: Extensions, reference: tuple[int, ...], service: Service, n: int = 1
) -> list[Ask]:
    """The n choices of one prompt. The first has the request's seed, the others seeds derived from it.

    reference: from `reference_of`. Raises APIError (400) for a drafter that is not offered.
    """
    assert params.seed is not None
    speculation, shared = fields.speculation, tuple(prompt)
    seeds = [params.seed, *(seed_of(params.seed, "choice", at) for at in range(1, n))]
    return [
        Ask(
            prompt=shared,
            params=params.model_copy(update={"seed": seed}),
            reference=reference,
            tenant=fields.cache_salt or "",
            priority=fields.priority or 0,
            drafters=None if speculation is None else speculation.names(service.drafters),
            nodes=None if speculation is None else speculation.budget,
            trace=speculation is not None and speculation.trace,
        )
        for seed in seeds
    ]


async def reference_of(service: Service, settings: Settings, fields: Extensions, choices: int = 1) -> tuple[int, ...]:
    """Token ids of `prediction`, cut to the context length; none without a prediction.

    choices: of the whole request. The engine gets a copy of the tokens with each choice, so their sum is bounded.
    Raises APIError (400) if it is exceeded.
    """
    if fields.prediction is None:
        return ()
    reference = tuple((await service.encode(fields.prediction.text, add_special=False))[: service.context_length])
    if len(reference) * choices > settings.max_prompt_chars:
        each = f"'prediction' has {len(reference)} tokens for each of {choices} choices"
        raise invalid(f"{each}; the server takes at most {settings.max_prompt_chars} together", "prediction")
    return reference


def check_count(n: int | None, settings: Settings) -> int:
    """The number of choices. Raises APIError (400)."""
    if n is not None and n > settings.max_choices:
        raise invalid(f"'n' may be at most {settings.max_choices}", "n")
    return n or 1
