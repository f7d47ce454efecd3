"""POST /v1/messages and /v1/messages/count_tokens over a service without an engine."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from paceline.serve.app import application
from paceline.serve.asking import Ask, Delta
from paceline.serve.errors import APIError
from paceline.serve.message_blocks import Blocks
from paceline.serve.routes.messages import router
from paceline.serve.settings import Settings
from paceline.serve.tool_parsing import Arguments, CallBegun, CallEnded
from paceline.serve.wire.messages import Prompting
from serve.calls import CALLS
from serve.fakes import FakeService
from serve.front import HELLO, left_at_work, named_events

PATH = "/v1/messages"
LOOK = {
    "name": "look",
    "description": "look at it",
    "input_schema": {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]},
}


def app_of(service: FakeService, **settings: Any) -> FastAPI:
    return application([router(service, Settings(**settings))])


def fake(answer: str = "hello world", **fields: Any) -> FakeService:
    return FakeService(answer=answer, context_length=4096, **fields)


def send(service: FakeService, body: dict[str, Any], path: str = PATH, **settings: Any) -> Any:
    headers = {"anthropic-version": "2023-06-01", "content-type": "application/json"}
    return TestClient(app_of(service, **settings)).post(path, content=json.dumps(body), headers=headers)


def post(service: FakeService, **body: Any) -> dict[str, Any]:
    answer = send(service, {"messages": HELLO, "max_tokens": 1000, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(**body: Any) -> Ask:
    service = fake()
    post(service, **body)
    return service.asked[0][0]


def stream(service: FakeService, **body: Any) -> list[dict[str, Any]]:
    """The events, each with its type as its name."""
    return named_events(send(service, {"messages": HELLO, "max_tokens": 1000, **body, "stream": True}))


def refused(path: str = PATH, **body: Any) -> tuple[int, str, str]:
    """Status, type and message of an error in Anthropic's form."""
    service = fake()
    answer = send(service, {"messages": HELLO, "max_tokens": 9, **body}, path)
    assert not service.asked, "the engine got a request that was refused"
    told = answer.json()
    assert set(told) == {"type", "error"}
    assert told["type"] == "error"
    assert set(told["error"]) == {"type", "message"}
    return answer.status_code, told["error"]["type"], told["error"]["message"]


def test_answer():
    service = fake(cached_tokens=4)
    body = post(service, system="be kind", model="fake-model", metadata={"user_id": "me"}, seed=3)
    prompt = len(service.asked[0][0].prompt)
    assert body["id"].startswith("msg_")
    assert body["metrics"]["seed"] == 3
    assert body["metrics"]["speculative_decoding"]["lossless"] is True
    assert {name: body[name] for name in body if name not in ("id", "metrics")} == {
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "content": [{"type": "text", "text": "hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 12,
        },
    }
    assert service.chats[0][0] == [{"role": "system", "content": "be kind"}, *HELLO]


@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({}, "end_turn", None, "hello world"),
        ({"max_tokens": 5}, "max_tokens", None, "hello"),
        ({"stop_sequences": ["wor", "zzz"]}, "stop_sequence", "wor", "hello "),
    ],
)
def test_stop_reasons(fields: dict[str, Any], reason: str, sequence: str | None, text: str):
    body = post(fake(), **fields)
    assert (body["stop_reason"], body["stop_sequence"], body["content"][0]["text"]) == (reason, sequence, text)
    last = stream(fake(), **fields)[-2]
    assert last["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


@pytest.mark.parametrize("letter", ["a", "я", '"', "\n"])
def test_a_conversation_is_as_long_as_its_characters(letter: str):
    messages = [{"role": "user", "content": letter * 60}, {"role": "assistant", "content": letter * 40}]
    body = {"messages": messages, "max_tokens": 5}
    assert send(fake(), body, max_prompt_chars=100).status_code == 200
    answer = send(fake(), body, max_prompt_chars=99)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "prompt is too long: 100 characters > 99 maximum")


def test_blocks_reach_the_template_as_templates_read_them():
    service = fake(chat_template="<tool_call> {{ tools }}")
    cached = {"type": "ephemeral", "ttl": "1h"}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "h", "cache_control": cached}, {"type": "text", "text": "i"}]},
        {"role": "user", "content": "there"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Well."},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}},
                {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen", "cache_control": cached},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "no"}], "is_error": True},
                {"type": "tool_result", "tool_use_id": "toolu_3"},
                {"type": "text", "text": "so?"},
            ],
        },
    ]
    post(service, messages=messages, system=[{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}], tools=[LOOK])

    def call(number: int, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"id": f"toolu_{number}", "type": "function", "function": {"name": "look", "arguments": arguments}}

    told, tools, begun = service.chats[0]
    assert told == [
        {"role": "system", "content": "be\nkind"},
        {"role": "user", "content": "h\ni\nthere"},
        {"role": "assistant", "content": "Well.", "tool_calls": [call(1, {"at": 1}), call(2, {})]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "seen"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no"},
        {"role": "tool", "tool_call_id": "toolu_3", "content": ""},
        {"role": "user", "content": "so?"},
    ]
    parameters = LOOK["input_schema"]
    assert tools == [{"type": "function", "function": {"name": "look", "description": "look at it", "parameters": parameters}}]
    assert begun is False


@pytest.mark.parametrize(
    ("texts", "told"), [(["", "a"], "a"), (["a", ""], "a\n"), (["", "", "a", "", "b"], "a\n\nb"), (["", ""], "")]
)
def test_texts_of_one_role_are_lines(texts: list[str], told: str):
    turns = [{"role": "user", "content": [{"type": "text", "text": one}]} for one in texts]
    assert Prompting.model_validate({"messages": turns}).template_messages == [{"role": "user", "content": told}]


def test_many_long_texts_of_one_role_are_joined_once():
    """Repeated concatenation would copy 80 GB."""
    read = Prompting.model_validate({"messages": [{"role": "user", "content": "a" * 10_000}] * 4096})
    began = time.process_time()
    (told,) = read.template_messages
    assert time.process_time() - began < 1
    assert len(told["content"]) == 4096 * 10_001 - 1


def test_an_assistants_last_message_is_continued():
    service = fake()
    post(service, messages=[*HELLO, {"role": "assistant", "content": "he"}])
    assert service.chats[0][2] is True
    assert service.asked[0][0].prompt[-2:] == tuple(b"he")


def test_an_assistants_empty_last_message_is_answered_as_if_it_were_absent():
    """There is nothing in it to continue; continuing would go on with the user's words."""
    service = fake()
    post(service, messages=[*HELLO, {"role": "assistant", "content": []}])
    assert service.chats[0][2] is False


def test_what_the_system_says_later_is_put_into_the_users_turn():
    """As Claude Code sends it. A template may refuse a second system message, or one that is not the first."""
    hint, hello = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}
    turns = [hint, hello, hint, {"role": "assistant", "content": "Hm."}, hint, {"role": "user", "content": "so?"}]
    assert Prompting.model_validate({"system": "be kind", "messages": turns}).template_messages == [
        {"role": "system", "content": "be kind\nbe brief"},
        {"role": "user", "content": "hi\nbe brief"},
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "be brief\nso?"},
    ]


@pytest.mark.parametrize(
    "hint",
    [
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}},
        {"thinking": {"type": "adaptive", "budget_tokens": 0, "display": "summarized"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}},
        {"diagnostics": {"previous": {}}},
        {"system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=36ee5;"}]},
        {"output_config": {"effort": "high"}},
        {"output_config": {"effort": "low"}},
    ],
)
def test_what_asks_for_nothing_is_accepted(hint: dict[str, Any]):
    """As Claude Code sends it, also to a model that does not think."""
    assert asked(**hint, seed=1) == asked(seed=1)
    assert send(fake(), {"messages": HELLO, **hint}, f"{PATH}/count_tokens").status_code == 200


def test_what_claude_code_writes_for_anthropic_does_not_hide_a_cached_beginning():
    """It differs in every request, and stands before all else."""
    blocks = [{"type": "text", "text": text} for text in ("x-anthropic-billing-header: cch=1;", "be kind", "and brief")]
    body = {"system": blocks, "messages": [{"role": "user", "content": "hi"}]}
    assert Prompting.model_validate(body).template_messages[0] == {"role": "system", "content": "be kind\nand brief"}


def test_a_thread_is_refused_as_anthropics_clients_understand_it():
    """Its tool runner asks for one first, and sends the request again without where it reads these details."""
    answer = send(fake(), {"messages": HELLO, "max_tokens": 9, "thread": {"type": "create"}}, PATH)
    assert answer.status_code == 400
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert answer.json()["error"]["details"] == details
    assert "details" not in send(fake(), {"messages": HELLO, "max_tokens": 0}, PATH).json()["error"]


def test_a_thought_that_another_server_kept_to_itself_is_left_out():
    block, answer = {"type": "redacted_thinking", "data": "gAAAA"}, {"type": "text", "text": "2"}
    turns = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": [block, answer]}, *HELLO]
    assert Prompting.model_validate({"messages": turns}).template_messages[1] == {"role": "assistant", "content": "2"}


def test_effort_reaches_a_template_that_has_levels_of_it():
    for effort in ("low", "high"):
        service = fake(chat_template="{{ messages }}{{ reasoning_effort }}</think>")
        post(service, output_config={"effort": effort})
        assert service.encoded[0].startswith(f'{{"reasoning_effort": "{effort}"}}\n')


def test_sampling():
    ask = asked(
        max_tokens=7,
        temperature=0.3,
        top_p=0.8,
        top_k=4,
        seed=9,
        stop_sequences=["x"],
        speculation={"drafter": "ngram", "budget": 3},
        cache_salt="me",
        prediction={"type": "content", "content": "ab"},
        service_tier="auto",
        thinking={"type": "disabled"},
    )
    params = ask.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (7, 0.3, 0.8, 4)
    assert (params.seed, params.stop) == (9, ("x",))
    assert (ask.drafters, ask.nodes, ask.tenant, ask.reference) == (("ngram",), 3, "me", tuple(b"ab"))
    assert asked().params.temperature == 1.0
    usage = post(fake(), prediction={"type": "content", "content": "hello"})["usage"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 5


def thinker(answer: str = "<think>\nHm, 2.\n</think>\n\nTwo.", **more: Any) -> FakeService:
    return fake(answer, chat_template="{{ messages }}{{ enable_thinking }}{{ tools }}</think><tool_call>", **more)


def test_thoughts_are_blocks():
    body = post(thinker())
    thought, said = body["content"]
    assert thought == {"type": "thinking", "thinking": "Hm, 2.", "signature": thought["signature"]}
    assert thought["signature"], "clients drop a thought without one, or send it back as a text"
    assert said == {"type": "text", "text": "Two."}
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": len("<think>\nHm, 2.\n</think>")}
    events = stream(thinker())
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert blocks == [{"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": ""}]
    deltas = [(event["index"], event["delta"]) for event in events if event["type"] == "content_block_delta"]
    *of_thought, last = [delta for index, delta in deltas if index == 0]
    assert "".join(delta["thinking"] for delta in of_thought) == "Hm, 2."
    assert last == {"type": "signature_delta", "signature": thought["signature"]}
    assert "".join(delta["text"] for index, delta in deltas if index == 1) == "Two."
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1]


def test_a_thought_is_kept_back_if_it_is_not_to_be_told():
    omitted = {"type": "adaptive", "display": "omitted"}
    thought, said = post(thinker(), thinking=omitted)["content"]
    assert (thought["type"], thought["thinking"], said["text"]) == ("thinking", "", "Two.")
    deltas = [event["delta"]["type"] for event in stream(thinker(), thinking=omitted) if event["type"] == "content_block_delta"]
    assert deltas[0] == "signature_delta"
    assert set(deltas[1:]) == {"text_delta"}


def test_a_picture_in_a_tools_result_is_put_into_words():
    """An agent's tool may read a picture; refused, it would end the conversation. One that a user sends is refused."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "i.png"}, picture]}
    turns = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    said = Prompting.model_validate({"messages": turns}).template_messages[-1]
    assert said["role"] == "tool"
    assert said["content"].startswith("i.png\n[an image")


def test_a_thought_may_be_all_there_is_or_lead_to_a_call():
    cut = post(thinker("<think>\nHm, 2."))
    assert [block["type"] for block in cut["content"]] == ["thinking"]
    assert cut["usage"]["output_tokens_details"]["thinking_tokens"] == cut["usage"]["output_tokens"]
    called = post(
        thinker('<think>\nHm.</think>\n<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'), tools=[LOOK]
    )
    assert [block["type"] for block in called["content"]] == ["thinking", "tool_use"]
    assert called["stop_reason"] == "tool_use"


def test_the_thinking_field_reaches_the_template_as_enable_thinking():
    for thinking, told in (
        (None, ""),
        ({"type": "disabled"}, '{"enable_thinking": false}'),
        ({"type": "enabled", "budget_tokens": 1024}, '{"enable_thinking": true}'),
        ({"type": "adaptive"}, '{"enable_thinking": true}'),
    ):
        service = thinker()
        post(service, thinking=thinking)
        assert service.encoded[0].startswith(told + "\n" if told else "user"), thinking
        count = send(service, {"messages": HELLO, "thinking": thinking}, f"{PATH}/count_tokens").json()["input_tokens"]
        assert count == len(service.asked[0][0].prompt)
    # a template without such a variable is called as before
    assert asked(thinking={"type": "disabled"}).prompt == asked().prompt


def test_thoughts_that_are_sent_back_are_for_the_template():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    turn = {"role": "assistant", "content": [thought, {"type": "text", "text": "Two."}]}
    service = thinker()
    post(service, messages=[*HELLO, turn, {"role": "user", "content": "Sure?"}])
    assert service.chats[0][0][1] == {"role": "assistant", "reasoning_content": "Hm.", "content": "Two."}


def test_stream():
    service = fake()
    events = stream(service)
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    prompt = len(service.asked[0][0].prompt)
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] == prompt
    assert events[2] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"text_delta"}
    assert "".join(delta["text"] for delta in deltas) == "hello world"
    assert events[-2]["usage"] == {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 12,
    }
    assert "metrics" not in events[-2]
    assert "metrics" in stream(fake(), speculation={})[-2]


def test_empty_answer():
    assert post(fake(""))["content"] == []
    assert [event["type"] for event in stream(fake(""))] == ["message_start", "ping", "message_delta", "message_stop"]


def test_calls():
    service = fake(CALLS)
    body = post(service, tools=[LOOK])
    text, first, second = body["content"]
    assert text == {"type": "text", "text": "Well."}
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "look", {"at": 1})
    assert second["input"] == {"at": 23}
    assert first["id"].startswith("toolu_")
    assert body["stop_reason"] == "tool_use"
    assert service.asked[0][0].params.grammar in service.grammars
    assert "look at it" in service.chats[0][0][0]["content"]


def test_streamed_calls():
    events = stream(fake(CALLS), tools=[LOOK])
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == [0, 1, 2]
    assert [event["content_block"]["type"] for event in starts] == ["text", "tool_use", "tool_use"]
    assert starts[1]["content_block"]["input"] == {}
    pieces = [event for event in events if event["type"] == "content_block_delta" and event["index"] == 2]
    assert {event["delta"]["type"] for event in pieces} == {"input_json_delta"}
    assert json.loads("".join(event["delta"]["partial_json"] for event in pieces)) == {"at": 23}
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_is_cut_off_is_left_out():
    body = post(fake(CALLS), tools=[LOOK], max_tokens=118)
    assert [block["type"] for block in body["content"]] == ["text", "tool_use"]
    assert body["stop_reason"] == "max_tokens"
    events = stream(fake(CALLS), tools=[LOOK], max_tokens=118)
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]


def test_no_tool_is_to_be_used_where_the_last_call_was_cut_off():
    """Cut off by a stop token, which the message shows nowhere else."""
    blocks = Blocks()
    blocks.add([CallBegun(0, "one", "look"), Arguments(0, "{}"), CallEnded(0)])
    assert blocks.called
    blocks.add([CallBegun(1, "two", "look"), Arguments(1, '{"at":')])
    assert not blocks.called
    assert [block["id"] for block in blocks.content] == ["one"]


def test_half_a_surrogate_pair_in_arguments():
    answer = '<tool_call>\n{"name": "look", "arguments": {"at": "\\ud800x"}}\n</tool_call>'
    assert post(fake(answer), tools=[LOOK])["content"][0]["input"] == {"at": "?x"}


def test_choosing_tools():
    both = [LOOK, {**LOOK, "name": "other", "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}]
    for choice, must, named, several in [
        (None, False, True, True),
        ({"type": "auto"}, False, True, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, True, False),
        ({"type": "any"}, True, True, True),
        ({"type": "tool", "name": "look"}, True, False, False),
    ]:
        grammar = asked(tools=both, tool_choice=choice).params.grammar
        assert grammar is not None
        assert ("start: calls" in grammar.text) == must
        assert ("other" in grammar.text) == named
        assert (")*" in grammar.text.split("calls: ")[1].split("\n")[0]) == several
    assert asked(tools=both, tool_choice={"type": "none"}).params.grammar is None


def test_structured_output():
    grammar = asked(output_config={"format": {"type": "json_schema", "schema": {"type": "integer"}}}).params.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.text) == ("json_schema", '{"type":"integer"}')


def test_trace():
    events = stream(fake(), speculation={"trace": True})
    steps = [step for event in events for step in event.get("speculation", {"steps": []})["steps"]]
    assert sum(len(step["emitted"]) for step in steps) == 12


def test_counting():
    service = fake()
    body = {"messages": HELLO, "system": "be kind", "tools": [LOOK], "model": "fake-model"}
    answer = send(service, body, f"{PATH}/count_tokens")
    assert answer.json() == {"input_tokens": len(asked(system="be kind", tools=[LOOK]).prompt)}
    assert not service.asked
    assert not service.grammars
    answer = send(service, {**body, "model": "other"}, f"{PATH}/count_tokens")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert "max_tokens" in refused(f"{PATH}/count_tokens")[2]


def test_failures():
    error = APIError(503, "the engine is gone", retry_after_s=3)
    answer = send(fake(refuses=error), {"messages": HELLO, "max_tokens": 3, "stream": True})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"
    assert answer.json() == {"type": "error", "error": {"type": "overloaded_error", "message": "the engine is gone"}}
    last = stream(fake(breaks=(2, error)))[-1]
    assert last == {"type": "error", "error": {"type": "overloaded_error", "message": "the engine is gone"}}
    assert "boom" not in json.dumps(stream(fake(breaks=(2, RuntimeError("boom")))))
    silent = fake(script=lambda ask: [Delta(text="a", tokens=(97,))])
    assert send(silent, {"messages": HELLO, "max_tokens": 3}).status_code == 503


@pytest.mark.parametrize("streams", [False, True])
def test_leaving_ends_the_work(streams: bool):
    assert left_at_work(app_of, PATH, {"messages": HELLO, "max_tokens": 9, "stream": streams}) == 1


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"max_tokens": None}, "'max_tokens'"),
        ({"max_tokens": 0}, "'max_tokens'"),
        ({"temperature": 1.5}, "'temperature'"),
        ({"mcp_servers": [{"name": "x"}]}, "'mcp_servers' is not supported"),
        ({"speed": "fast"}, "'speed' is not supported"),
        ({"container": "c"}, "'container' is not supported"),
        ({"odd": 1}, "unknown field 'odd'"),
        ({"messages": []}, "'messages'"),
        ({"messages": [{"role": "system", "content": "a"}]}, "none of the user's"),
        ({"messages": [{"role": "odd", "content": "a"}]}, "'messages[0].role'"),
        (said({"type": "tool_result", "tool_use_id": "a"}, role="system"), "does not belong to the role 'system'"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "'clear_tool_uses_20250919'"),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": 1}]}},
            "'context_management.edits[0].keep'",
        ),
        ({"system": 3}, "'system' must be a text or a list of blocks"),
        (said({"type": "image", "source": {"type": "url", "url": "http://a"}}), "'messages[0].content[0].type' is not supported"),
        (said({"type": "document", "source": {}}), "'document'"),
        ({"thinking": {"type": "odd"}}, "'odd'"),
        ({"thinking": {"type": "adaptive", "display": "odd"}}, "'thinking.display'"),
        (said({"type": "thinking", "thinking": "a", "signature": ""}), "does not belong to the role 'user'"),
        (said({"type": "redacted_thinking", "data": "a"}), "does not belong to the role 'user'"),
        (said({"type": "redacted_thinking"}, role="assistant"), "'messages[0].content[0].data' is missing"),
        (said({"type": "text", "text": "a", "signature": "b"}, role="assistant"), "no part of a block"),
        (said({"type": "text"}), "'messages[0].content[0].text' is missing"),
        (said({"type": "text", "text": "a", "id": "b"}), "no part of a block"),
        (said({"type": "text", "text": "a", "is_error": True}), "no part of a block"),
        (said({"type": "tool_use", "id": "a", "name": "f", "input": {}}), "does not belong to the role 'user'"),
        (said({"type": "tool_result", "tool_use_id": "a"}, role="assistant"), "does not belong to the role 'assistant'"),
        (said({"type": "tool_use", "id": "a", "name": "f", "input": {}}, role="assistant"), "'tool_result' must follow"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
        ({"tools": [LOOK, LOOK]}, "name of another"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool"}}, "'tool_choice.name'"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "no"}}, "not among"),
        ({"tool_choice": {"type": "any"}}, "needs 'tools'"),
        ({"stop_sequences": ["a"] * 17}, "'stop_sequences' may hold at most 16"),
        ({"speculation": {"drafter": "magic"}}, "ngram"),
        ({"speculation": {"trace": True}}, "'stream'"),
        ({"guided_regex": "a", "output_config": {"format": {"type": "json_schema", "schema": {}}}}, "excludes"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "prompt is too long: 5019 tokens > 4095 maximum"),
    ],
)
def test_refused_by_name(body: dict[str, Any], told: str):
    status, kind, message = refused(**body)
    assert (status, kind) == (400, "invalid_request_error")
    assert told in message


def test_bodies_that_are_no_json_object_are_refused():
    for content in ("", "[]", "{", "3"):
        answer = TestClient(app_of(fake())).post(PATH, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["type"] == "error"
