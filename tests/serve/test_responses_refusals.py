"""Requests that POST /v1/responses refuses."""

from __future__ import annotations

from typing import Any

import pytest

from serve.calls import LOOK
from serve.fakes import FakeService
from serve.front import RESPONSES, refusal

refused = RESPONSES.refused


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"store": True}, "store", "stored"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "stored"),
        ({"conversation": "c"}, "conversation", "stored"),
        ({"background": True}, "background", "stored"),
        ({"prompt": {"id": "p"}}, "prompt", "stored"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", "auto"),
        ({"include": ["reasoning.summary"]}, "include", "reasoning.summary"),
        ({"truncation": "auto"}, "truncation", "left out"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"max_tokens": 3}, "max_tokens", "max_output_tokens"),
        ({"n": 2}, "n", "one answer"),
        ({"messages": [{"role": "user"}]}, "messages", "'input'"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type", "file_search"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "needs 'tools'"),
        ({"tools": [LOOK], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "web_search"),
        ({"tools": 3}, "tools", "list"),
        ({"tools": [LOOK], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "mcp"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice", "not among"),
        ({"tool_choice": "required"}, "tool_choice", "needs 'tools'"),
        (
            {"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "no"}]}},
            "tool_choice",
            "'no'",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "needs it"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "text.format", "excludes"),
        ({"input": []}, "input", "at least 1"),
        ({"input": None}, "input", "is missing"),
        ({"input": {}}, "input", "a text or a list"),
        (item(role="user", content=3), "input[0].content", "a text or a list"),
        ({"tool_choice": 3}, "tool_choice", "dictionary"),
        (item(type="reasoning", role="user", content="a"), "input[0].role", "no part"),
        (item(role="user", content="a", encrypted_content="b"), "input[0].encrypted_content", "no part"),
        (item(role="user", content="a", parsed_arguments={}), "input[0].parsed_arguments", "no part"),
        (item(type="reasoning", content=[{"type": "input_text", "text": "a"}]), "input[0].content", "another type"),
        (item(role="user", content=[{"type": "reasoning_text", "text": "a"}]), "input[0].content", "another type"),
        (item(role="user", content="a", summary=[]), "input[0].summary", "no part"),
        (item(type="item_reference", id="a"), "input[0].type", "nothing is stored here"),
        (item(role="user"), "input[0].content", "missing"),
        (item(role="user", content="a", call_id="b"), "input[0].call_id", "no part"),
        (
            item(role="user", content=[{"type": "input_image", "image_url": "http://a"}]),
            "input[0].content[0].type",
            "input_image",
        ),
        (item(role="user", content=[{"type": "input_text"}]), "input[0].content[0].text", "holds"),
        (item(type="function_call_output", output="a"), "input[0].call_id", "missing"),
        (item(type="function_call_output", output="a", namespace="b", call_id="c"), "input[0].namespace", "no part"),
        ({"tools": [{"type": "custom", "name": "a"}]}, "tools[0].type", "namespace"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "a"}]}]}, "tools[0].type", "custom"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].type", "'function'"),
        ({"odd": 1}, "odd", "unknown"),
        ({"speculation": {"drafter": "magic"}}, "speculation.drafter", "ngram"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater"),
    ],
)
def test_refused_by_name(body: dict[str, Any], param: str, said: str):
    status, named, message = refused(**body)
    assert (status, named) == (400, param), message
    assert said in message


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"x": float("nan")}, "NaN"),
        ({"x": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}, "levels deep"),
        ({"description": "x" * 65536}, "65536 characters"),
        ({"type": "array"}, "type object"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_that_may_not_be_called_is_looked_at_as_well(parameters: dict[str, Any], said: str, streams: bool):
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    odd = {**LOOK, "name": "other", "parameters": parameters}
    status, param, message = refused(tools=[LOOK, odd], tool_choice=choice, stream=streams)
    assert (status, param) == (400, "tools" if "characters" in said else "tools[1]")
    assert said in message


def test_limits():
    assert refused(model="other")[0] == 404
    assert refused(input="x" * 600)[1:] == ("input", refused(input="x" * 600)[2])
    status, param, message = refusal(RESPONSES.client(FakeService(), max_prompt_chars=10), RESPONSES.path, {"input": "x" * 11})
    assert (status, param) == (400, "input")
    assert "maximum length 10" in message
