"""Requests that POST /v1/completions refuses, and fields that it accepts and ignores."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.serve.errors import APIError
from serve.fakes import VOCAB, FakeService
from serve.front import CHAT, COMPLETIONS, RESPONSES, Front, refusal
from serve.openapi_schema import check

asked, refused = COMPLETIONS.asked, COMPLETIONS.refused
NEUTRAL = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "safety_identifier": "x",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "best_of": 1,
    "suffix": None,
    "logit_bias": None,
    "stop": None,
    "stream": None,
    "stream_options": None,
    "model": "fake-model",
    "temperature": None,
    "n": None,
    "max_tokens": None,
    "logprobs": None,
}


@pytest.mark.parametrize(("name", "value"), list(NEUTRAL.items()))
def test_accepted_though_it_changes_nothing(name: str, value: Any):
    assert asked(**{name: value}, seed=1) == asked(seed=1)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"use_beam_search": True}, "use_beam_search", "not supported"),
        ({"chat_template": "x"}, "chat_template", "not supported"),
        ({"store": True}, "store", "not supported"),
        ({"service_tier": "flex"}, "service_tier", "not supported"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "'stream'"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field 'stream_options.x'"),
        ({"speculation": {"trace": True}}, "speculation.trace", "'stream'"),
        ({"speculation": {"nodes": 3}}, "speculation.nodes", "unknown field"),
        ({"speculation": {"budget": 65}}, "speculation.budget", "less than or equal to 64"),
        ({"speculation": {"drafter": "eagle"}}, "speculation.drafter", "model, ngram, reference"),
        ({"messages": []}, "messages", "unknown field 'messages'"),
        ({"prompt": None}, "prompt", "'prompt'"),
        ({"prompt": 5}, "prompt", "'prompt'"),
        ({"prompt": []}, "prompt", "'prompt'"),
        ({"prompt": [[]]}, "prompt[0]", "'prompt[0]'"),
        ({"prompt": ["a", 5]}, "prompt[1]", "'prompt[1]'"),
        ({"prompt": [1, "a"]}, "prompt[1]", "'prompt[1]'"),
        ({"prompt": [True]}, "prompt[0]", "'prompt[0]'"),
        ({"prompt": [-1]}, "prompt[0]", "'prompt[0]'"),
        ({"prompt": [VOCAB]}, "prompt", "token 258"),
        ({"prompt": ["a"] * 65}, "prompt", "at most 64"),
        ({"prompt": "", "add_special_tokens": False}, "prompt", "empty"),
        ({"n": 17}, "n", "at most 16"),
        ({"n": 0}, "n", "'n' should be"),
        ({"n": "2"}, "n", "'n' should be a valid integer"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": True}, "max_tokens", "'max_tokens'"),
        ({"temperature": -0.1}, "temperature", "'temperature'"),
        ({"temperature": 1e6}, "temperature", "'temperature'"),
        ({"top_p": 1.1}, "top_p", "'top_p'"),
        ({"logprobs": 21}, "logprobs", "'logprobs'"),
        ({"logprobs": True}, "logprobs", "'logprobs'"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "'prompt_logprobs'"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a", "'logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "'logit_bias"),
        ({"logit_bias": {"258": 1}}, "logit_bias", "token 258"),
        ({"stop_token_ids": [400]}, "stop_token_ids", "token 400"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ""}, "stop", "'stop'"),
        ({"stop": [1]}, "stop[0]", "'stop[0]'"),
        ({"stop": ["a"] * 500}, "stop", "'stop'"),
        ({"seed": 2**64}, "seed", "'seed'"),
        ({"repetition_penalty": 0}, "repetition_penalty", "'repetition_penalty'"),
        ({"guided_regex": "a", "guided_grammar": "b"}, "guided_grammar", "exclude"),
        ({"structured_outputs": {}}, "structured_outputs", "one of"),
        ({"guided_regex": ""}, "guided_regex", "'guided_regex'"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'response_format.type'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "json_schema"),
        ({"prediction": {"type": "text", "content": "a"}}, "prediction.type", "'prediction.type'"),
        ({"min_tokens": -1}, "min_tokens", "'min_tokens'"),
        ({"\ud800": 1}, None, "not valid Unicode"),
        ({"\ud83d\ude00": 1}, "\\U0001f600", "unknown field"),
        ({"a" * 1000: 1}, "a" * 64, "unknown field"),
    ],
)
def test_refused(body: dict[str, Any], param: str | None, words: str):
    status, told, message = refused(**body)
    assert status == 400
    assert told == param
    assert words in message


def test_bodies_that_are_no_json_object_are_refused():
    client = COMPLETIONS.client(FakeService())
    for answer in (
        client.post(COMPLETIONS.path, content=b"{", headers={"content-type": "application/json"}),
        client.post(COMPLETIONS.path, content=b'"\xff"', headers={"content-type": "application/json"}),
        client.post(COMPLETIONS.path, content=b"[" * 100_000, headers={"content-type": "application/json"}),
        client.post(COMPLETIONS.path, content=b"[]", headers={"content-type": "application/json"}),
        client.post(COMPLETIONS.path, content=b"null", headers={"content-type": "application/json"}),
        client.post(COMPLETIONS.path, content=b""),
        client.post(COMPLETIONS.path, content=b"{}", headers={"content-type": "text/plain"}),
        client.post(
            COMPLETIONS.path, content=b'{"prompt": "a", "temperature": NaN}', headers={"content-type": "application/json"}
        ),
    ):
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert client.post(COMPLETIONS.path, json={}).json()["error"]["param"] == "prompt"


def test_long_prompts_are_refused_before_they_are_read():
    client = COMPLETIONS.client(FakeService(), max_prompt_chars=10)
    assert refusal(client, COMPLETIONS.path, {"prompt": ["a" * 6, "b" * 5]})[:2] == (400, "prompt")
    assert client.post(COMPLETIONS.path, json={"prompt": ["a" * 5, "b" * 5]}).status_code == 200


def test_clients_know_that_a_prompt_is_too_long():
    """By the code, or by words that LiteLLM searches for in the message."""
    for bounds, length, words in (
        ({}, 600, "this model's maximum context length is 512 tokens, answer included; the prompt has 601"),
        ({"max_prompt_chars": 10}, 11, "string too long. Expected a string with maximum length 10, but got one with 11"),
    ):
        client = COMPLETIONS.client(FakeService(), **bounds)
        error = client.post(COMPLETIONS.path, json={"prompt": "a" * length}).json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "prompt", "context_length_exceeded")
        assert words in error["message"]


@pytest.mark.parametrize("front", [COMPLETIONS, CHAT])
def test_prompts_of_all_choices_together_are_bounded(front: Front):
    """Each choice sends its prompt to the engine again; a single prompt may be as long as the context."""
    service = FakeService(context_length=40)
    client = front.client(service, max_prompt_chars=30)
    body = {**front.body, "max_tokens": 1}
    assert client.post(front.path, json=body).status_code == 200
    each = len(service.asked[0][0].prompt)
    assert client.post(front.path, json={**body, "n": 40 // each}).status_code == 200
    status, param, message = refusal(client, front.path, {**body, "n": 40 // each + 1})
    assert (status, param) == (400, next(iter(front.body)))
    assert message == f"the prompts of all choices have {each * (40 // each + 1)} tokens; the server takes at most 40 together"
    assert len(service.asked) == 2


def test_prompts_of_token_ids_count_towards_the_bound_of_all_choices():
    client = COMPLETIONS.client(FakeService(context_length=40), max_prompt_chars=30)
    assert client.post(COMPLETIONS.path, json={"prompt": [[97] * 10] * 2, "n": 2}).status_code == 200
    assert refusal(client, COMPLETIONS.path, {"prompt": [[97] * 10, [97] * 11], "n": 2})[:2] == (400, "prompt")


@pytest.mark.parametrize("front", [COMPLETIONS, CHAT, RESPONSES])
@pytest.mark.parametrize(("given", "taken"), [(1e-8, 0.0), (1e-6, 1e-6), (0, 0.0)])
def test_temperatures_too_small_to_divide_by_are_greedy(front: Front, given: float, taken: float):
    assert front.asked(temperature=given).params.temperature == taken


def test_unknown_model():
    status, param, message = refused(model="gpt")
    assert (status, param) == (404, "model")
    assert "fake-model" in message


def test_errors_before_the_first_token_have_their_status():
    full = APIError(429, "the queue is full", retry_after_s=3)
    for wish in (False, True):
        answer = COMPLETIONS.client(FakeService(refuses=full)).post(COMPLETIONS.path, json={"prompt": "a", "stream": wish})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.json()["error"]["type"] == "rate_limit_error"


def test_refusals_are_what_openai_describes():
    check("ErrorResponse", COMPLETIONS.client(FakeService()).post(COMPLETIONS.path, json={"prompt": 5}).json())
