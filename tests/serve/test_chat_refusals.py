"""Requests that POST /v1/chat/completions refuses, and fields that it accepts and ignores."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.serve.errors import APIError
from serve.calls import LOOK_CALL
from serve.fakes import FakeService
from serve.front import CHAT, HELLO, refusal

asked, stream, refused = CHAT.asked, CHAT.stream, CHAT.refused
NEUTRAL = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "default",
    "safety_identifier": "x",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "in_memory",
    "prompt_cache_options": {"ttl": "1h"},
    "modalities": ["text"],
    "reasoning_effort": "none",
    "verbosity": "medium",
    "audio": None,
    "functions": [],
    "function_call": "none",
    "best_of": 1,
    "length_penalty": 1.0,
    "use_beam_search": False,
    "include_reasoning": True,
    "suffix": "",
    "web_search_options": None,
    "tools": None,
    "tool_choice": None,
    "parallel_tool_calls": True,
    "response_format": None,
    "prediction": None,
    "model": "fake-model",
    "logprobs": None,
    "top_logprobs": 0,
    "max_tokens": None,
    "max_completion_tokens": None,
    "add_generation_prompt": True,
}


@pytest.mark.parametrize(("name", "value"), list(NEUTRAL.items()))
def test_accepted_though_it_changes_nothing(name: str, value: Any):
    assert asked(**{name: value}, seed=1) == asked(seed=1)


def said(**message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", **message}]}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
        ({"functions": [{"name": "f"}]}, "functions", "use 'tools'"),
        ({"function_call": "auto"}, "function_call", "use 'tool_choice'"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"include_reasoning": False}, "include_reasoning", "always told"),
        ({"documents": 0}, "documents", "not supported"),
        ({"echo": True}, "echo", "not supported"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"moderation": {"model": "x"}}, "moderation", "not supported"),
        ({"verbosity": "low"}, "verbosity", "not supported"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "the model alone"),
        ({"chat_template_kwargs": {"no name": 1}}, "chat_template_kwargs", "pattern"),
        ({"chat_template_kwargs": {"deep": [1]}}, "chat_template_kwargs.deep", "valid"),
        ({"store": True}, "store", "not supported"),
        ({"service_tier": "priority"}, "service_tier", "not supported"),
        ({"unheard": 1}, "unheard", "unknown field 'unheard'"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "'messages'"),
        (said(), "messages[0].content", "absent"),
        (said(content=None), "messages[0].content", "calls tools"),
        (said(content=5), "messages[0].content", "'messages[0].content'"),
        (said(content="a", role="function"), "messages[0].role", "'messages[0].role'"),
        (said(content="a", weight=1), "messages[0].weight", "unknown field"),
        (said(content="a", tool_calls=[LOOK_CALL]), "messages[0].tool_calls", "'user'"),
        (said(content="a", tool_call_id="x"), "messages[0].tool_call_id", "'tool'"),
        (said(content="a", role="tool"), "messages[0].tool_call_id", "'tool'"),
        (said(content="a", role="assistant", audio={"id": "x"}), "messages[0].audio", "not supported"),
        (
            said(content="a", role="assistant", function_call={"name": "x"}),
            "messages[0].function_call",
            "not supported",
        ),
        (
            said(content=[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}]),
            "messages[0].content[1].type",
            "'image_url'",
        ),
        (said(content=[{"type": "input_audio", "input_audio": {}}]), "messages[0].content[0].type", "'input_audio'"),
        (said(content=[{"type": "file", "file": {}}]), "messages[0].content[0].type", "'file'"),
        (said(content=[{"type": "text"}]), "messages[0].content[0].text", "missing"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
        ({"logprobs": 1}, "logprobs", "'logprobs'"),
        ({"top_logprobs": 2}, "top_logprobs", "'logprobs'"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "20"),
        ({"n": 17}, "n", "at most 16"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, None, "name"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format", "excludes"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": "b" * 70000}}}},
            "response_format.json_schema.schema",
            "65536",
        ),
        ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "prediction.content[0].type", "'image_url'"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message", "assistant"),
        ({"stream_options": {}}, "stream_options", "'stream'"),
        ({"metadata": {"a": 1}}, "metadata.a", "'metadata"),
        ({"metadata": {str(at): "" for at in range(17)}}, "metadata", "16"),
        ({"speculation": {"drafter": "ngram+eagle"}}, "speculation.drafter", "'eagle'"),
        ({"speculation": {"drafter": ""}}, "speculation.drafter", "''"),
    ],
)
def test_refused(body: dict[str, Any], param: str | None, words: str):
    status, told, message = refused(**body)
    assert status == 400
    assert told == (param or "response_format.json_schema.name")
    assert words in message


def test_a_long_conversation_is_refused_before_it_is_rendered():
    service = FakeService()
    client = CHAT.client(service, max_prompt_chars=10)
    assert refusal(client, CHAT.path, {"messages": HELLO * 6})[:2] == (400, "messages")
    assert not service.chats
    status, param, message = refused(messages=[{"role": "user", "content": "a" * 600}])
    assert (status, param) == (400, "messages")
    assert "tokens" in message


def test_the_length_limit_counts_characters_in_every_script():
    tool = {"type": "function", "function": {"name": "look", "description": "я" * 300}}
    other = {"type": "function", "function": {**tool["function"], "name": "see"}}
    for letter in ("a", "я", "東", '"', "\n"):
        client = CHAT.client(FakeService(context_length=4096), max_prompt_chars=100)
        body = {"messages": [{"role": "user", "content": letter * 100}]}
        assert client.post(CHAT.path, json=body).status_code == 200
    client = CHAT.client(FakeService(context_length=4096), max_prompt_chars=900)
    assert client.post(CHAT.path, json={"messages": HELLO, "tools": [tool]}).status_code == 200
    assert refusal(client, CHAT.path, {"messages": HELLO, "tools": [tool, other]})[:2] == (400, "messages")


def test_a_model_without_a_template_says_so():
    client = CHAT.client(FakeService(has_chat_template=False))
    assert refusal(client, CHAT.path, {"messages": HELLO}) == (400, "messages", "the model has no chat template")


def test_unknown_model():
    answer = CHAT.client(FakeService()).post(CHAT.path, json={"messages": HELLO, "model": "../etc"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_errors():
    full = APIError(503, "the engine failed", retry_after_s=1)
    for wish in (False, True):
        assert CHAT.client(FakeService(refuses=full)).post(CHAT.path, json={"messages": HELLO, "stream": wish}).status_code == 503
    chunks = stream(FakeService(breaks=(2, full)))
    assert chunks[-1]["error"]["message"] == "the engine failed"
