"""Tools in POST /v1/chat/completions: answers that call them, whole and in a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve.calls import CALLS
from serve.fakes import FakeService
from serve.front import CHAT
from serve.openapi_schema import check

post, stream, refused = CHAT.post, CHAT.stream, CHAT.refused
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a place.",
        "parameters": {"type": "object", "properties": {"at": {"type": "array", "items": {"type": "integer"}}}},
    },
}
SAID = 'Well.\n<tool_call>\n{"name": "look", "arguments": {"at": [1, 2]}}\n</tool_call>\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'  # noqa: E501


def allowed(*names: str, mode: str = "auto") -> dict[str, Any]:
    """A `tool_choice` that allows only some tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def caller(**more: Any) -> FakeService:
    """A service with a tool template, which always answers with two calls."""
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


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_tools_that_are_allowed_are_shown(mode: str):
    service, other = caller(), {**LOOK, "function": {**LOOK["function"], "name": "other"}}
    post(service, tools=[LOOK, other], tool_choice=allowed("look", mode=mode))
    assert service.chats[0][1] == [LOOK]
    grammar = service.asked[0][0].params.grammar
    assert grammar is not None
    assert "other" not in grammar.text


def test_a_conversation_goes_on_behind_a_call_that_was_cut_off():
    service = caller()
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": ['}}
    said = {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [call]}
    asked = [{"role": "user", "content": "Look."}, said, {"role": "tool", "tool_call_id": "a", "content": "no"}]
    post(service, tools=[LOOK], messages=asked)
    told = service.chats[0][0][1]
    assert told["tool_calls"][0]["function"]["arguments"] == '{"at": ['
    assert told["reasoning_content"] == "Hm."
    spoken = FakeService(chat_template="{{ messages }}", context_length=2048)
    post(spoken, tools=[LOOK], messages=asked)
    assert json.loads(spoken.chats[0][0][2]["content"].split("\n")[1])["arguments"] == '{"at": ['


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


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("fields", "arguments", "reason"),
    [
        ({"stop": "1}"}, ['{"at": '], "stop"),
        ({"stop": "23"}, ['{"at": 1}', '{"at": '], "stop"),
        ({"stop": "23}", "include_stop_str_in_output": True}, ['{"at": 1}', '{"at": 23}'], "tool_calls"),
        ({"stop": "}}\n</tool_call>\n<tool_call>"}, ['{"at": 1'], "stop"),
        ({"stop": "\n</tool_call>\n<tool_call>"}, ['{"at": 1}'], "tool_calls"),
        ({}, ['{"at": 1}', '{"at": 23}'], "tool_calls"),
    ],
)
def test_a_call_that_a_stop_string_cuts_off_is_not_to_be_run(
    fields: dict[str, Any], arguments: list[str], reason: str, streams: bool
):
    service = FakeService(answer=CALLS, context_length=4096)
    if streams:
        choices = [chunk["choices"][0] for chunk in stream(service, tools=[LOOK], **fields)]
        said = ["", ""]
        for call in [call for one in choices for call in one["delta"].get("tool_calls", [])]:
            said[call["index"]] += call["function"]["arguments"]
        assert [text for text in said if text] == arguments
        assert choices[-1]["finish_reason"] == reason
    else:
        (choice,) = post(service, tools=[LOOK], **fields)["choices"]
        assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == arguments
        assert choice["finish_reason"] == reason


def test_text_like_a_tool_call_stays_text_without_tools_or_with_tool_choice_none():
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
        ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "function": {"name": "look"}}}, None),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "look"}}, None),
        ({"tools": [LOOK], "tool_choice": {"type": "custom", "custom": {"name": "look"}}}, None),
        ({"tools": [LOOK], "tool_choice": allowed("other")}, "tool_choice"),
        ({"tool_choice": allowed("look")}, "tool_choice"),
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
