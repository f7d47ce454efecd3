"""Anthropic's Python client."""

from __future__ import annotations

import anthropic
import pytest

MODEL = "paceline-14m"
ASKED = [{"role": "user", "content": "name[Aromi], eatType[coffee shop], food[Chinese]"}]
GREEDY = {"temperature": 0}
"""Sent as an extra field: the client no longer has a parameter for it."""
TOOL = {
    "name": "book",
    "description": "Book a table",
    "input_schema": {"type": "object", "properties": {"people": {"type": "integer", "maximum": 9}}, "required": ["people"]},
}


@pytest.fixture(scope="module")
def client(url: str, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


def test_messages_whole_and_streamed_say_the_same(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model=MODEL, max_tokens=32, messages=ASKED, extra_body=GREEDY)
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(model=MODEL, max_tokens=32, messages=ASKED, extra_body=GREEDY) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model=MODEL, max_tokens=1, messages=ASKED)
    assert client.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens == whole.usage.input_tokens


def test_tools(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model=MODEL, max_tokens=200, messages=ASKED, tools=[TOOL], tool_choice={"type": "tool", "name": "book"}, extra_body=GREEDY
    )
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.name == "book"
    assert isinstance(call.input["people"], int)


def test_errors_have_their_classes(client: anthropic.Anthropic, url: str) -> None:
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=MODEL, max_tokens=0, messages=ASKED)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=url, api_key="wrong-key", max_retries=0).messages.create(
            model=MODEL, max_tokens=4, messages=ASKED
        )
