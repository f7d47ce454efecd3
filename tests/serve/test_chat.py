"""POST /v1/chat/completions over a service without an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve.calls import LOOK_CALL
from serve.fakes import BOS, EOS, FakeService, token_logprobs
from serve.front import CHAT, HELLO, refusal
from serve.openapi_schema import check

post, asked, stream = CHAT.post, CHAT.asked, CHAT.stream


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
    service = FakeService(chat_template="{{ tools }} <tool_call>")
    messages = [
        {"role": "developer", "content": "be kind", "type": "text"},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [LOOK_CALL], "refusal": None, "audio": None, "annotations": []}
        # as LiteLLM sends back what it was given
        | {"provider_specific_fields": {"refusal": None}},
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


def test_an_answers_text_may_come_back_with_a_copy_of_its_message():
    """OpenAI's Agents SDK copies the rest of a message to its text."""
    copied = {
        "role": "assistant",
        "refusal": None,
        "annotations": [],
        "reasoning_content": "Hm.",
        "reasoning": "",
        "tool_calls": [],
    }
    parts = [{"type": "text", "text": "2", **copied}, {"type": "refusal", "refusal": "no"}]
    messages = [*HELLO, {"role": "assistant", "content": parts}, {"role": "assistant", "content": None}, *HELLO]
    plain = [*HELLO, {"role": "assistant", "content": "2no"}, {"role": "assistant", "content": ""}, *HELLO]
    assert asked(messages=messages).prompt == asked(messages=plain).prompt


def test_what_openais_clients_read_an_answer_as_may_come_back():
    """`parse()` of its Python client puts both on a message, and sends them with it."""
    call = {**LOOK_CALL, "function": {**LOOK_CALL["function"], "parsed_arguments": {"at": [1]}}}
    given = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call], "parsed": None},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        {"role": "assistant", "content": '{"n": 1}', "parsed": {"n": 1}, "tool_calls": []},
        {"role": "assistant", "content": None, "reasoning_content": "Hm."},
        *HELLO,
    ]
    service, plain = FakeService(chat_template="{{ tools }} <tool_call>"), FakeService(chat_template="{{ tools }} <tool_call>")
    post(service, messages=given, add_special_tokens=False, spaces_between_special_tokens=True)
    given[1] = {"role": "assistant", "tool_calls": [LOOK_CALL]}
    given[3] = {"role": "assistant", "content": '{"n": 1}'}
    given[4] = {"role": "assistant", "content": "", "reasoning": "Hm."}
    post(plain, messages=given)
    assert service.chats == plain.chats


def test_variables_of_the_template_are_handed_on():
    service = FakeService()
    post(service, chat_template_kwargs={"enable_thinking": False, "size": 3})
    begun = b'{"enable_thinking": false, "size": 3}\n'
    assert service.asked[0][0].prompt == (BOS, *begun, *b"user: hi\nassistant: ")


def test_a_begun_answer_is_continued():
    service = FakeService()
    begun = [*HELLO, {"role": "assistant", "content": "he"}]
    post(service, messages=begun, continue_final_message=True, add_generation_prompt=False)
    assert service.chats[0][2] is True
    assert service.asked[0][0].prompt[-2:] == tuple(b"he")


def test_cache_control_of_a_text_part_is_accepted_and_ignored():
    """A hint for Anthropic's cache that routers pass on."""
    part = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
    plain = asked(messages=[{"role": "user", "content": "hello"}])
    assert asked(messages=[{"role": "user", "content": [part]}]).prompt == plain.prompt


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
    CHAT.client(service, default_max_tokens=9).post(CHAT.path, json={"messages": HELLO})
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


def test_prompt_log_probabilities_and_token_ids_are_in_the_answer():
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


def test_entries_of_a_chunk_are_those_of_its_text():
    """guidance reads a chunk's text from them where it has several. An EOS has its own, beside the end."""
    chunks = [chunk["choices"][0] for chunk in stream(FakeService(answer="hello", step=9), logprobs=True)]
    text, end = [one for one in chunks if one["logprobs"]]
    assert "".join(entry["token"] for entry in text["logprobs"]["content"]) == text["delta"]["content"] == "hello"
    assert (end["delta"], end["finish_reason"], len(end["logprobs"]["content"])) == ({}, "stop", 1)


def test_one_grammar_may_be_given_by_both_names():
    grammar = "start: /a+/"
    given = {"guided_grammar": grammar, "structured_outputs": {"grammar": grammar}, "guided_decoding_backend": "guidance"}
    assert asked(**given).params.grammar == asked(guided_grammar=grammar).params.grammar


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
    told = refusal(CHAT.client(service), CHAT.path, {"messages": HELLO, "response_format": {"type": "json_object"}})
    assert told == (400, "response_format", "the schema is too deep")


@pytest.mark.parametrize("wish", [False, True])
def test_work_ends_when_the_client_leaves(wish: bool):
    assert CHAT.left_at_work(stream=wish) == 1


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
