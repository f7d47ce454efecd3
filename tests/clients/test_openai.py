"""OpenAI's Python client."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

MODEL = "paceline-14m"
ASKED = [{"role": "user", "content": "name[Aromi], eatType[coffee shop], food[Chinese]"}]


@pytest.fixture(scope="module")
def client(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "paceline"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_chat_whole_and_streamed_say_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_completion_tokens=40)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 40 or whole.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        temperature=0,
        max_completion_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASKED, temperature=0, max_tokens=20, logprobs=True) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == said
    assert final.choices[0].logprobs is not None


def test_choices_seeds_and_log_probabilities(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL,
        "messages": ASKED,
        "temperature": 1.0,
        "seed": 7,
        "n": 3,
        "max_tokens": 16,
        "logprobs": True,
        "top_logprobs": 4,
    }
    first, again = (client.chat.completions.create(**asked) for _ in range(2))
    assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
    assert len({c.message.content for c in first.choices}) == 3
    told = first.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert all(len(one.top_logprobs) == 4 and one.logprob <= 0 for one in told.content)
    assert (
        b"".join(bytes(one.bytes or []) for one in told.content)
        .decode(errors="ignore")
        .startswith((first.choices[0].message.content or "")[:5])
    )


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["Once upon", "def f("], max_tokens=8, temperature=0, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None
    streamed = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def test_responses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="Once upon a time", temperature=0, max_output_tokens=24)
    assert whole.status in ("completed", "incomplete")
    with client.responses.stream(model=MODEL, input="Once upon a time", temperature=0, max_output_tokens=24) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert said == whole.output_text


class Place(BaseModel):
    name: str
    stars: int


def test_structured_outputs(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL, messages=ASKED, response_format=Place, temperature=0, max_tokens=300, frequency_penalty=1.0
    )
    assert isinstance(parsed.choices[0].message.parsed, Place)
    loose = client.chat.completions.create(
        model=MODEL, messages=ASKED, response_format={"type": "json_object"}, max_tokens=300, temperature=0, frequency_penalty=1.0
    )
    if loose.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(loose.choices[0].message.content or ""), dict)


TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Book a table",
        "parameters": {
            "type": "object",
            "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 9}, "day": {"enum": ["friday", "sunday"]}},
            "required": ["people", "day"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "book"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: openai.OpenAI, choice: object, stream: bool) -> None:
    asked = {
        "model": MODEL,
        "messages": ASKED,
        "tools": [TOOL],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 200,
        "parallel_tool_calls": False,
    }
    if stream:
        pieces = [c.choices[0].delta for c in client.chat.completions.create(**asked, stream=True) if c.choices]
        calls = [call for piece in pieces for call in piece.tool_calls or []]
        name = "".join(call.function.name or "" for call in calls if call.index == 0)
        arguments = "".join(call.function.arguments or "" for call in calls if call.index == 0)
    else:
        answer = client.chat.completions.create(**asked).choices[0]
        assert answer.finish_reason in ("tool_calls", "stop")
        assert answer.message.tool_calls
        name, arguments = answer.message.tool_calls[0].function.name, answer.message.tool_calls[0].function.arguments
    assert name == "book"
    told = json.loads(arguments)
    assert 1 <= told["people"] <= 9
    assert told["day"] in ("friday", "sunday")


def test_predicted_outputs(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=40)
    text = whole.choices[0].message.content or ""
    again = client.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, max_tokens=40, prediction={"type": "content", "content": text}
    )
    assert again.choices[0].message.content == text
    assert again.usage is not None
    assert again.usage.completion_tokens_details is not None
    # the policy decides how much is drafted in which step, by measured times
    assert 2 * (again.usage.completion_tokens_details.accepted_prediction_tokens or 0) > again.usage.completion_tokens


def test_errors_have_their_classes(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=ASKED, temperature=9e9)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=ASKED)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong-key", max_retries=0).models.list()
    with pytest.raises(openai.BadRequestError, match="image_url"):
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}],
        )


def test_asynchronous_client(url: str, key: str) -> None:
    async def run() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
            asked = [client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=20) for _ in range(6)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert len(set(asyncio.run(run()))) == 1
