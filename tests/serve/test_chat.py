"""POST /v1/chat/completions over a service without an engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from paceline.serve.asking import Ask
from paceline.serve.errors import APIError
from paceline.serve.routes.chat import router
from serve.fakes import BOS, EOS, FakeService, token_logprobs
from serve.front import app_of, client_of, leave, refusal, streamed
from serve.openapi_schema import check

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
WORD = {"type": "function", "function": {"name": "look", "arguments": '{"at": [1]}'}, "id": "call_1"}


def post(service: FakeService, **body: Any) -> dict[str, Any]:
    answer = client_of(service, router).post(PATH, json={"messages": HELLO, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(**body: Any) -> Ask:
    service = FakeService()
    post(service, **body)
    return service.asked[0][0]


def stream(service: FakeService, **body: Any) -> list[dict[str, Any]]:
    return streamed(client_of(service, router), PATH, {"messages": HELLO, **body})


def refused(**body: Any) -> tuple[int, str | None, str]:
    service = FakeService()
    told = refusal(client_of(service, router), PATH, {"messages": HELLO, **body})
    assert not service.asked, "the engine heard of a request that was refused"
    return told


def test_answer():
    service = FakeService(cached_tokens=4)
    body = post(service)
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    prompt = service.asked[0][0].prompt
    assert prompt == (BOS, *b"user: hi\nassistant: ")
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 12,
        "total_tokens": len(prompt) + 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert body["metrics"]["speculative_decoding"]["drafter"] == "ngram+model"


def test_messages_reach_the_template_as_templates_read_them():
    service = FakeService(chat_template="{{ tools }}")
    messages = [
        {"role": "developer", "content": "be kind", "type": "text"},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [WORD], "refusal": None, "audio": None, "annotations": []},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        {"role": "assistant", "refusal": "no"},
        {"role": "system", "content": ""},
    ]
    post(service, messages=messages)
    assert service.chats[0][0] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {"at": [1]}}},
            ],
        },
        {"role": "tool", "content": "seen", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "no"},
        {"role": "system", "content": ""},
    ]
    assert service.chats[0][2] is False


def test_a_begun_answer_is_continued():
    service = FakeService()
    begun = [*HELLO, {"role": "assistant", "content": "he"}]
    post(service, messages=begun, continue_final_message=True, add_generation_prompt=False)
    assert service.chats[0][2] is True
    assert service.asked[0][0].prompt[-2:] == tuple(b"he")


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 5),
        ({"max_tokens": 100_000}, None),
    ],
)
def test_length(body: dict[str, Any], most: int | None):
    ask = asked(**body)
    assert ask.params.max_tokens == (most or 512 - len(ask.prompt))


def test_defaults_of_model_and_server():
    service = FakeService(defaults={"temperature": 0.7, "repetition_penalty": 1.1})
    post(service)
    assert service.asked[0][0].params.temperature == 0.7
    assert service.asked[0][0].params.repetition_penalty == 1.1
    client_of(service, router, default_max_tokens=9).post(PATH, json={"messages": HELLO})
    assert service.asked[1][0].params.max_tokens == 9
    assert asked().params.temperature == 1.0


def test_choices():
    service = FakeService(answer=lambda ask: str(ask.params.seed))
    body = post(service, n=3, seed=5)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["choices"][0]["message"]["content"] == "5"
    assert len({choice["message"]["content"] for choice in body["choices"]}) == 3
    assert body["usage"]["prompt_tokens"] == len(service.asked[0][0].prompt)


def test_logprobs():
    content = post(FakeService(answer="hü"), logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    first = token_logprobs(104, 2)
    assert content[0] == {
        "token": "h",
        "logprob": first.logprob,
        "bytes": [104],
        "top_logprobs": [
            {"token": "h", "logprob": first.logprob, "bytes": [104]},
            {"token": "i", "logprob": first.logprob - 1, "bytes": [105]},
        ],
    }
    assert [entry["token"] for entry in content] == ["h", "\ufffd", "\ufffd", "</s>"]
    assert bytes(byte for entry in content[:3] for byte in entry["bytes"]).decode() == "hü"
    plain = post(FakeService(answer="h"), logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in plain] == [[], []]
    assert post(FakeService(), logprobs=False)["choices"][0]["logprobs"] is None


def test_what_is_told_of_the_prompt():
    service = FakeService()
    body = post(service, prompt_logprobs=0, return_token_ids=True)
    prompt = list(service.asked[0][0].prompt)
    assert body["prompt_token_ids"] == prompt
    assert len(body["prompt_logprobs"]) == len(prompt)
    assert body["choices"][0]["token_ids"] == [*b"hello world", EOS]
    chunks = stream(FakeService(), prompt_logprobs=0, return_token_ids=True)
    assert chunks[0]["prompt_token_ids"] == prompt
    assert chunks[0]["prompt_logprobs"] == body["prompt_logprobs"]
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == [*b"hello world", EOS]


def test_stream():
    chunks = stream(FakeService())
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(delta.get("content", "") for delta in deltas) == "hello world"
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1]["choices"][0]["stop_reason"] is None
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert not any({"usage", "metrics", "speculation"} & set(chunk) for chunk in chunks)


def test_stream_says_what_the_answer_says():
    wishes: dict[str, Any] = {"n": 2, "seed": 1, "logprobs": True, "top_logprobs": 1, "stop": "rld"}
    service = FakeService(answer=lambda ask: f"grüße wörld {ask.params.seed}", step=2)
    whole = post(service, **wishes)["choices"]
    chunks = stream(service, **wishes)
    for at, choice in enumerate(whole):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == at]
        assert own[0]["delta"]["role"] == "assistant"
        assert not any("role" in one["delta"] for one in own[1:])
        assert "".join(one["delta"].get("content", "") for one in own) == choice["message"]["content"]
        told = [entry for one in own if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert told == choice["logprobs"]["content"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert own[-1]["stop_reason"] == "rld"


def test_usage_of_a_stream():
    chunks = stream(FakeService(), stream_options={"include_usage": True}, prediction={"type": "content", "content": "hell"})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert chunks[-1]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 4
    assert chunks[-1]["metrics"]["speculative_decoding"]["tau"] == 3.0
    chunks = stream(FakeService(), stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 3, 6, 9, 12, 12, 12]


def test_speculation_in_a_stream():
    chunks = stream(FakeService(), speculation={"trace": True, "drafter": "ngram"})
    steps = [step for chunk in chunks for step in chunk.get("speculation", {"steps": []})["steps"]]
    assert [token["token"] for step in steps for token in step["emitted"]] == [*"hello world", "</s>"]
    assert ["metrics" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["metrics"]["speculative_decoding"]["drafter"] == "ngram"


def test_response_formats():
    assert asked(response_format={"type": "text"}).params.grammar is None
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for body, text in (
        ({"type": "json_object"}, '{"type":"object"}'),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, '{"type":"object"}'),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True, "description": "d"}},
            json.dumps(schema, separators=(",", ":")),
        ),
    ):
        service = FakeService()
        post(service, response_format=body)
        grammar = service.asked[0][0].params.grammar
        assert grammar is not None
        assert (grammar.kind, grammar.text) == ("json_schema", text)
        assert service.grammars == [grammar]
    service = FakeService(refused_grammar="the schema is too deep")
    told = refusal(client_of(service, router), PATH, {"messages": HELLO, "response_format": {"type": "json_object"}})
    assert told == (400, "response_format", "the schema is too deep")


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
    "functions": None,
    "function_call": None,
    "web_search_options": None,
    "tools": None,
    "tool_choice": None,
    "parallel_tool_calls": True,
    "response_format": None,
    "prediction": None,
    "model": "fake-model",
    "logprobs": None,
    "top_logprobs": None,
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
        ({"best_of": 1}, "best_of", "not supported"),
        ({"echo": True}, "echo", "not supported"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"moderation": {"model": "x"}}, "moderation", "not supported"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported"),
        ({"verbosity": "low"}, "verbosity", "not supported"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "the model alone"),
        ({"chat_template_kwargs": {}}, "chat_template_kwargs", "the model alone"),
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
        (said(content="a", tool_calls=[WORD]), "messages[0].tool_calls", "'user'"),
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
        (
            said(role="assistant", tool_calls=[{**WORD, "function": {"name": "look", "arguments": "[1]"}}]),
            "messages[0].tool_calls[0].function.arguments",
            "JSON object",
        ),
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
    client = client_of(service, router, max_prompt_chars=10)
    assert refusal(client, PATH, {"messages": HELLO * 6})[:2] == (400, "messages")
    assert not service.chats
    status, param, message = refused(messages=[{"role": "user", "content": "a" * 600}])
    assert (status, param) == (400, "messages")
    assert "tokens" in message


def test_a_model_without_a_template_says_so():
    client = client_of(FakeService(has_chat_template=False), router)
    assert refusal(client, PATH, {"messages": HELLO}) == (400, "messages", "the model has no chat template")


def test_unknown_model():
    answer = client_of(FakeService(), router).post(PATH, json={"messages": HELLO, "model": "../etc"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_errors():
    full = APIError(503, "the engine failed", retry_after_s=1)
    for wish in (False, True):
        assert (
            client_of(FakeService(refuses=full), router).post(PATH, json={"messages": HELLO, "stream": wish}).status_code == 503
        )
    chunks = stream(FakeService(breaks=(2, full)))
    assert chunks[-1]["error"]["message"] == "the engine failed"


@pytest.mark.parametrize("wish", [False, True])
def test_work_ends_when_the_client_leaves(wish: bool):
    async def scene() -> None:
        leaves = asyncio.Event()

        async def hold() -> None:
            leaves.set()
            await asyncio.Event().wait()

        service = FakeService(hold=hold)
        await leave(app_of(service, router), PATH, {"messages": HELLO, "stream": wish}, leaves)
        assert service.left_early == 1

    asyncio.run(scene())


WISHES: list[dict[str, Any]] = [
    {},
    {"logprobs": True, "top_logprobs": 3, "n": 2},
    {"prediction": {"type": "content", "content": "hello"}},
    {"stop": "wor", "return_token_ids": True, "prompt_logprobs": 1},
    {"speculation": {"drafter": "none"}},
]


@pytest.mark.parametrize("wish", WISHES)
def test_answers_are_what_openai_describes(wish: dict[str, Any]):
    check("CreateChatCompletionResponse", post(FakeService(), **wish))
    for options in ({}, {"include_usage": True}):
        for chunk in stream(FakeService(answer="grüße"), stream_options=options, **wish):
            check("CreateChatCompletionStreamResponse", chunk)


LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a place.",
        "parameters": {"type": "object", "properties": {"at": {"type": "array", "items": {"type": "integer"}}}},
    },
}
SAID = 'Well.\n<tool_call>\n{"name": "look", "arguments": {"at": [1, 2]}}\n</tool_call>\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'  # noqa: E501


def caller(**more: Any) -> FakeService:
    """It knows tools, and calls one twice whatever it is asked."""
    return FakeService(answer=SAID, chat_template="{{ tools }} <tool_call>", **more)


def test_tool_calls():
    service = caller()
    choice = post(service, tools=[LOOK])["choices"][0]
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "look", "arguments": '{"at": [1, 2]}'},
        {"name": "look", "arguments": "{}"},
    ]
    assert len({call["id"] for call in calls}) == 2
    assert {call["type"] for call in calls} == {"function"}
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Well.")
    assert service.chats[0][1] == [LOOK]
    grammar = service.asked[0][0].params.grammar
    assert grammar is not None
    assert grammar in service.grammars


def test_calls_alone_have_no_content():
    service = FakeService(answer=SAID.removeprefix("Well.\n"), chat_template="{{ tools }} <tool_call>")
    message = post(service, tools=[LOOK], tool_choice="required")["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 2


@pytest.mark.parametrize("step", [1, 7, 500])
def test_tool_calls_in_a_stream_are_those_of_the_answer(step: int):
    chunks = stream(caller(step=step), tools=[LOOK], n=2, logprobs=True)
    whole = post(caller(), tools=[LOOK])["choices"][0]["message"]["tool_calls"]
    for at in range(2):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == at]
        assert "".join(one["delta"].get("content", "") for one in own) == "Well."
        calls: dict[int, dict[str, Any]] = {}
        for part in [part for one in own for part in one["delta"].get("tool_calls", [])]:
            if "id" in part:
                assert part["index"] not in calls
                calls[part["index"]] = {"name": part["function"]["name"], "arguments": ""}
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
        assert [calls[index] for index in sorted(calls)] == [call["function"] for call in whole]
        assert [one["finish_reason"] for one in own] == [None] * (len(own) - 1) + ["tool_calls"]
        assert sum(len(one["logprobs"]["content"]) for one in own if one["logprobs"]) == len(SAID) + 1


def test_a_call_that_is_cut_off_ends_by_its_length():
    choice = post(caller(), tools=[LOOK], max_tokens=60)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith("{")


def test_without_tools_or_with_none_to_be_called_text_is_text():
    for body in ({}, {"tools": [LOOK], "tool_choice": "none"}, {"tools": []}):
        service = caller()
        choice = post(service, **body)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (SAID, "stop")
        assert "tool_calls" not in choice["message"]
        assert service.chats[0][1] == []
        assert service.asked[0][0].params.grammar is None


def test_a_template_that_knows_no_tools_is_told_of_them_in_words():
    service = FakeService(answer=SAID)
    message = post(service, tools=[LOOK], tool_choice={"type": "function", "function": {"name": "look"}})["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "look"
    messages, tools, _ = service.chats[0]
    assert tools == []
    assert '"look"' in messages[0]["content"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}, "tools[0].function.x"),
        ({"tools": [LOOK] * 129}, "tools"),
        ({"tools": [LOOK, LOOK]}, "tools[1]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, None),
        ({"tools": [LOOK], "guided_regex": "a"}, "tools"),
    ],
)
def test_tools_refused(body: dict[str, Any], param: str | None):
    status, told, _ = refused(**body)
    assert status == 400
    assert told == param or (param is None and str(told).startswith("tool_choice"))


def test_answers_that_call_are_what_openai_describes():
    check("CreateChatCompletionResponse", post(caller(), tools=[LOOK], logprobs=True))
    for chunk in stream(caller(step=5), tools=[LOOK], stream_options={"include_usage": True}):
        check("CreateChatCompletionStreamResponse", chunk)
