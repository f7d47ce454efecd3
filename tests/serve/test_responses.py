"""POST /v1/responses over a service without an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.serve.asking import Ask
from paceline.serve.errors import APIError
from serve.calls import CALLS, LOOK
from serve.fakes import FakeService, token_logprobs
from serve.front import RESPONSES, named_events
from serve.openapi_schema import check

LOGPROBS = ["message.output_text.logprobs"]


def post(service: FakeService, **body: Any) -> dict[str, Any]:
    answer = RESPONSES.post(service, **body)
    check("Response", answer)
    return answer


def asked(**body: Any) -> Ask:
    service = FakeService(context_length=4096)
    post(service, **body)
    return service.asked[0][0]


def told(service: FakeService, items: list[dict[str, Any]], **body: Any) -> list[dict[str, Any]]:
    post(service, input=items, **body)
    return service.chats[0][0]


def stream(service: FakeService, **body: Any) -> list[dict[str, Any]]:
    """The events, each with its type as its name, numbered in order, and valid by OpenAI's description."""
    events = named_events(RESPONSES.client(service).post(RESPONSES.path, json={"input": "hi", **body, "stream": True}))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        check("ResponseStreamEvent", event)
    return events


def test_answer():
    service = FakeService(cached_tokens=4)
    body = post(service, instructions="be kind", metadata={"a": "b"}, seed=3, temperature=0.5)
    assert body["status"] == "completed"
    assert body["completed_at"] >= body["created_at"]
    (message,) = body["output"]
    assert message["content"] == [{"type": "output_text", "text": "hello world", "annotations": [], "logprobs": []}]
    assert (message["role"], message["status"]) == ("assistant", "completed")
    prompt = service.asked[0][0].prompt
    assert body["usage"] == {
        "input_tokens": len(prompt),
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(prompt) + 12,
    }
    assert (body["instructions"], body["metadata"], body["temperature"], body["store"]) == ("be kind", {"a": "b"}, 0.5, False)
    assert body["metrics"]["seed"] == 3
    assert body["metrics"]["speculative_decoding"]["num_spec_steps"] == 4
    assert service.chats[0][0] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]


def test_cut_answer():
    body = post(FakeService(), max_output_tokens=5)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    assert body["output"][0]["content"][0]["text"] == "hello"
    assert "completed_at" not in body


def test_items_reach_the_template_as_templates_read_them():
    earlier = post(FakeService(answer=CALLS, context_length=4096), tools=[LOOK])["output"]
    ids = [item["call_id"] for item in earlier[1:]]
    service = FakeService(context_length=4096, chat_template="<tool_call> {{ tools }}")
    items = [
        {"role": "developer", "content": "be kind"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}],
        },
        *earlier,
        {"type": "function_call_output", "call_id": ids[0], "output": "seen", "id": None, "status": "completed"},
        {"type": "function_call_output", "call_id": ids[1], "output": [{"type": "input_text", "text": "too"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": ""},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "phase": None},
    ]
    calls = [
        {"id": at, "type": "function", "function": {"name": "look", "arguments": {"at": number}}}
        for at, number in zip(ids, (1, 23), strict=True)
    ]
    assert told(service, items) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Well.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": ids[0], "content": "seen"},
        {"role": "tool", "tool_call_id": ids[1], "content": "too"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": {}}}],
        },
        {"role": "assistant", "content": "no"},
    ]


@pytest.mark.parametrize(
    ("instructions", "leading", "system"),
    [
        ("be kind", ["and brief"], "be kind\n\nand brief"),
        (None, ["be kind", "and brief"], "be kind\n\nand brief"),
        ("be kind", [""], "be kind"),
        ("be kind", [], "be kind"),
    ],
)
def test_instructions_and_leading_messages_become_one_system_message(instructions: str | None, leading: list[str], system: str):
    items = [{"role": role, "content": text} for role, text in zip(("developer", "system"), leading, strict=False)]
    items += [{"role": "user", "content": "hi"}, {"role": "developer", "content": "now briefer"}]
    first, *rest = told(FakeService(), items, instructions=instructions)
    assert first == {"role": "system", "content": system}
    assert rest == [{"role": "user", "content": "hi"}, {"role": "system", "content": "now briefer"}]


def test_sampling():
    ask = asked(
        max_output_tokens=7,
        temperature=0.3,
        top_p=0.8,
        top_k=4,
        min_p=0.1,
        seed=9,
        stop=["x"],
        speculation={"drafter": ["ngram"], "budget": 3},
        priority=2,
        cache_salt="me",
        prediction={"type": "content", "content": "ab"},
        include=LOGPROBS,
        top_logprobs=2,
    )
    params = ask.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (7, 0.3, 0.8, 4, 0.1)
    assert (params.seed, params.stop, params.logprobs) == (9, ("x",), 2)
    assert (ask.drafters, ask.nodes, ask.priority, ask.tenant, ask.reference) == (("ngram",), 3, 2, "me", tuple(b"ab"))
    assert asked().params.logprobs is None
    assert asked().params.max_tokens == 4096 - len(asked().prompt)
    details = post(FakeService(), prediction={"type": "content", "content": "hello"})["usage"]["output_tokens_details"]
    assert set(details) == {"reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"}


@pytest.mark.parametrize("streams", [False, True])
def test_logprobs(streams: bool):
    service = FakeService(answer="hü")
    fields: dict[str, Any] = {"include": LOGPROBS, "top_logprobs": 1}
    body = stream(service, **fields)[-1]["response"] if streams else post(service, **fields)
    logprobs = body["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == 4
    assert logprobs[0]["token"] == "h"
    assert logprobs[0]["logprob"] == token_logprobs(104, 1).logprob
    assert len(logprobs[0]["top_logprobs"]) == 1


def test_stream():
    events = stream(FakeService(), include=LOGPROBS)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 4,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == "hello world"
    assert sum(len(event["logprobs"]) for event in deltas) == 12
    assert {event["item_id"] for event in events if "item_id" in event} == {events[2]["item"]["id"]}
    assert events[0]["response"]["status"] == "in_progress"
    assert events[2]["item"]["content"] == []
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert events[-1]["response"]["metrics"]["speculative_decoding"]["lossless"] is True


def test_streamed_and_whole_answers_are_the_same():
    for fields in ({}, {"tools": [LOOK]}, {"max_output_tokens": 70, "tools": [LOOK]}, {"max_output_tokens": 3}):
        last = stream(FakeService(answer=CALLS, context_length=4096), seed=1, **fields)[-1]["response"]
        whole = post(FakeService(answer=CALLS, context_length=4096), seed=1, **fields)
        for body in (last, whole):
            for name in ("id", "created_at", "completed_at"):
                body.pop(name, None)
            for item in body["output"]:
                item.pop("id")
                item.pop("call_id", None)
        assert last == whole


def test_an_empty_answer_is_an_empty_message():
    body = post(FakeService(answer=""))
    assert body["output"][0]["content"][0]["text"] == ""
    assert [event["type"].removeprefix("response.") for event in stream(FakeService(answer=""))][2:] == [
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_calls():
    service = FakeService(answer=CALLS, context_length=4096)
    body = post(service, tools=[LOOK], tool_choice="auto")
    message, first, second = body["output"]
    assert message["content"][0]["text"] == "Well."
    assert (first["name"], first["arguments"], first["status"]) == ("look", '{"at": 1}', "completed")
    assert second["arguments"] == '{"at": 23}'
    assert first["call_id"].startswith("call_")
    assert first["call_id"] != second["call_id"]
    assert body["tools"] == [LOOK]
    grammar = service.asked[0][0].params.grammar
    assert grammar is not None
    assert grammar in service.grammars
    assert "look at it" in service.chats[0][0][0]["content"]


def test_streamed_calls():
    events = stream(FakeService(answer=CALLS, context_length=4096), tools=[LOOK])
    kinds = [event["type"].removeprefix("response.") for event in events]
    calls = [kind for kind in kinds if "function_call" in kind]
    assert calls.count("function_call_arguments.done") == 2
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    pieces = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert len(pieces) > 3
    assert "".join(event["delta"] for event in pieces if event["output_index"] == 2) == '{"at": 23}'
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(event["name"], event["arguments"]) for event in done] == [("look", '{"at": 1}'), ("look", '{"at": 23}')]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == events[-1]["response"]["output"]


def test_a_call_that_is_cut_off_is_incomplete():
    body = post(FakeService(answer=CALLS, context_length=4096), tools=[LOOK], max_output_tokens=55)
    assert body["status"] == "incomplete"
    assert body["output"][-1]["type"] == "function_call"
    assert body["output"][-1]["status"] == "incomplete"
    assert body["output"][-1]["arguments"] == '{"at": '


def test_a_call_that_a_stop_string_cuts_off_is_incomplete():
    service = FakeService(answer=CALLS, context_length=4096)
    for body in (post(service, tools=[LOOK], stop="23"), stream(service, tools=[LOOK], stop="23")[-1]["response"]):
        first, second = body["output"][1:]
        assert (first["status"], first["arguments"]) == ("completed", '{"at": 1}')
        assert (second["status"], second["arguments"]) == ("incomplete", '{"at": ')
    assert post(FakeService(), stop="wor")["output"][0]["status"] == "completed"


def test_choosing_tools():
    other = {**LOOK, "name": "other"}
    plain = asked(tools=[LOOK, other]).params.grammar
    assert plain is not None
    assert "other" in plain.text
    for choice in (
        {"type": "function", "name": "look"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]},
    ):
        grammar = asked(tools=[LOOK, other], tool_choice=choice).params.grammar
        assert grammar is not None
        assert "other" not in grammar.text
        assert "start: calls" in grammar.text
    assert asked(tools=[LOOK], tool_choice="none").params.grammar is None
    odd = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "look", "x": 1}]}
    told = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    assert post(FakeService(context_length=4096), tools=[LOOK], tool_choice=odd)["tool_choice"] == told


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json_schema"),
        ({"type": "json_schema", "name": "a", "schema": {"type": "integer"}, "strict": True}, "json_schema"),
    ],
)
def test_formats(given: dict[str, Any], kind: str | None):
    service = FakeService()
    body = post(service, text={"format": given})
    grammar = service.asked[0][0].params.grammar
    assert (grammar.kind if grammar else None) == kind
    assert (grammar in service.grammars) == bool(kind)
    assert body["text"]["format"] == given


def test_trace():
    events = stream(FakeService(), speculation={"trace": True})
    steps = [step for event in events for step in event.get("speculation", {"steps": []})["steps"]]
    assert sum(len(step["emitted"]) for step in steps) == 12


def test_failures():
    error = APIError(503, "the engine is gone", retry_after_s=3)
    answer = RESPONSES.client(FakeService(refuses=error)).post(RESPONSES.path, json={"input": "hi", "stream": True})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"
    events = stream(FakeService(breaks=(2, error)))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "the engine is gone"}
    assert "boom" not in json.dumps(stream(FakeService(breaks=(2, RuntimeError("boom")))))


def test_a_stream_that_cannot_begin_says_so(monkeypatch: pytest.MonkeyPatch):
    def fails(growing: object) -> list[dict[str, Any]]:
        raise RuntimeError("boom")

    monkeypatch.setattr("paceline.serve.routes.responses._Growing.begin", fails)
    (event,) = stream(FakeService())
    assert event["type"] == "response.failed"
    assert event["response"]["error"]["message"] == "the server failed to answer"


@pytest.mark.parametrize("streams", [False, True])
def test_leaving_ends_the_work(streams: bool):
    assert RESPONSES.left_at_work(stream=streams) == 1


def thinker(answer: str = "<think>\nHm, 2.\n</think>\n\nTwo.", **more: Any) -> FakeService:
    template = "{{ messages }}{{ enable_thinking }}{{ tools }}</think><tool_call>"
    return FakeService(answer=answer, chat_template=template, context_length=4096, **more)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_thoughts_are_items(step: int):
    body = post(thinker(step=step), include=LOGPROBS, top_logprobs=1)
    thought, message = body["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm, 2."}]
    assert (thought["type"], thought["status"], thought["summary"]) == ("reasoning", "completed", [])
    (part,) = message["content"]
    assert part["text"] == "Two."
    # whitespace after the thought, the words, and the final EOS
    assert len(part["logprobs"]) == len("\n\nTwo.") + 1
    counted = body["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert counted == len("<think>\nHm, 2.\n</think>")
    events = stream(thinker(step=step))
    kinds = [event["type"] for event in events]
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 2
    for kind, text in (("reasoning_text", "Hm, 2."), ("output_text", "Two.")):
        assert "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta") == text
        assert [event["text"] for event in events if event["type"] == f"response.{kind}.done"] == [text]


def test_a_thought_that_is_cut_off_or_leads_to_a_call():
    cut = post(thinker("<think>\nHm, 2 and so on"), max_output_tokens=12)
    assert (cut["status"], [one["status"] for one in cut["output"]]) == ("incomplete", ["incomplete"])
    called = post(thinker('<think>\nHm.</think>\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'), tools=[LOOK])
    assert [one["type"] for one in called["output"]] == ["reasoning", "function_call"]


def test_thoughts_that_are_sent_back_belong_to_what_they_led_to():
    body = post(thinker('<think>\nHm.</think>\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'), tools=[LOOK])
    thought, call = body["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "it is there"}
    messages = told(thinker(), [{"role": "user", "content": "Look."}, thought, call, output], tools=[LOOK])
    assert messages[1]["reasoning_content"] == "Hm."
    assert messages[1]["tool_calls"][0]["function"]["name"] == "look"
    assert all("reasoning_content" not in message for message in (messages[0], messages[2]))


def test_what_codex_sends_with_every_request_is_accepted():
    """Tools that a server runs itself are not offered to the model."""
    tools = [LOOK, {"type": "web_search", "external_web_access": False}, {"type": "image_generation"}]
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "1", "parsed": 1}]}
    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}", "parsed_arguments": {}}
    output = {"type": "function_call_output", "call_id": "a", "output": "it is there"}
    given = [{"role": "user", "content": "Look."}, thought, answer, call, output]
    service = FakeService(chat_template="{{ tools }} <tool_call>")
    body = post(service, input=given, tools=tools, client_metadata={"x-codex-installation-id": "1"})
    assert [tool["name"] for tool in body["tools"]] == ["look"]
    assert [message["role"] for message in service.chats[0][0]] == ["user", "assistant", "tool"]


SPACED = {"type": "namespace", "name": "mcp__demo", "description": "A server of tools", "tools": [LOOK, {**LOOK, "name": "see"}]}


@pytest.mark.parametrize(
    ("chosen", "called"),
    [
        ({"type": "function", "name": "look", "namespace": "mcp__demo"}, "mcp__demo__look"),
        ({"type": "function", "name": "see"}, "mcp__demo__see"),
        ({"type": "function", "name": "mcp__demo__see"}, "mcp__demo__see"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "see"}]}, "mcp__demo__see"),
    ],
    ids=["with its namespace", "the only one of its name", "as the model calls it", "allowed"],
)
def test_a_function_of_a_namespace_can_be_chosen(chosen: dict[str, Any], called: str):
    grammar = asked(tools=[LOOK, SPACED], tool_choice=chosen).params.grammar
    assert grammar is not None
    assert called in grammar.text
    (other,) = {"mcp__demo__look", "mcp__demo__see"} - {called}
    assert other not in grammar.text


def test_functions_of_a_namespace_are_called_by_both_names():
    """Codex lists the tools of a server of its own, and of each MCP server, in one."""
    call = '<tool_call>\n{"name": "mcp__demo__look", "arguments": {"at": 1}}\n</tool_call>'
    service = FakeService(answer=call, chat_template="{{ tools }} <tool_call>", context_length=4096)
    body = post(service, tools=[LOOK, SPACED])
    (item,) = body["output"]
    assert (item["namespace"], item["name"], item["arguments"]) == ("mcp__demo", "look", '{"at": 1}')
    assert [tool["function"]["name"] for tool in service.chats[0][1]] == ["look", "mcp__demo__look", "mcp__demo__see"]
    assert [tool["name"] for tool in body["tools"]] == ["look", "mcp__demo"]
    assert [tool["name"] for tool in body["tools"][1]["tools"]] == ["look", "see"]
    output = {
        "type": "function_call_output",
        "call_id": item["call_id"],
        "name": "look",
        "namespace": "mcp__demo",
        "output": "it is there",
    }
    messages = told(FakeService(chat_template="{{ tools }} <tool_call>"), [{"role": "user", "content": "Look."}, item, output])
    assert messages[1]["tool_calls"][0]["function"]["name"] == "mcp__demo__look"
    assert (messages[2]["role"], messages[2]["content"]) == ("tool", "it is there")


def test_what_an_agent_tells_by_itself_is_the_users():
    """Codex sends a goal as an output that answers no call."""
    output = {"type": "function_call_output", "name": "goal_objective", "namespace": "agent", "output": "Be done."}
    assert told(FakeService(), [{"role": "user", "content": "Hi."}, output])[1] == {"role": "user", "content": "Be done."}


def test_a_picture_in_a_functions_output_is_put_into_words():
    call = {"type": "function_call", "call_id": "a", "name": "view_image", "arguments": "{}"}
    output = {
        "type": "function_call_output",
        "call_id": "a",
        "output": [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}],
    }
    messages = told(FakeService(chat_template="{{ tools }} <tool_call>"), [{"role": "user", "content": "Look."}, call, output])
    assert messages[2]["content"].startswith("[an image")


def test_any_effort_switches_thinking_on_where_a_template_has_no_levels():
    service = FakeService(chat_template="{{ messages }}{{ enable_thinking }}</think>")
    assert post(service, reasoning={"effort": "low"})["reasoning"]["effort"] == "low"
    assert service.encoded[0].startswith('{"enable_thinking": true}')


def test_the_reasoning_effort_reaches_the_template():
    service = thinker()
    post(service, reasoning={"effort": "none", "summary": "detailed"}, include=["reasoning.encrypted_content"])
    assert service.encoded[0].startswith('{"enable_thinking": false}')
    service = FakeService(chat_template="{{ messages }}{{ reasoning_effort }}")
    assert post(service, reasoning={"effort": "high"})["reasoning"]["effort"] == "high"
    assert service.encoded[-1].startswith('{"reasoning_effort": "high"}')


def test_what_had_begun_when_the_engine_failed_is_incomplete():
    failed = stream(FakeService(breaks=(2, RuntimeError("broken"))))[-1]
    assert failed["type"] == "response.failed"
    assert [one["status"] for one in failed["response"]["output"]] == ["incomplete"]
