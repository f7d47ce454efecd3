"""Request bodies: errors are found at once, however many there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from paceline.serve.wire.chat import ChatRequest
from paceline.serve.wire.common import arguments, explained
from paceline.serve.wire.completions import CompletionRequest
from paceline.serve.wire.messages import MessagesRequest, Prompting
from paceline.serve.wire.responses import ResponsesRequest
from paceline.serve.wire.tokens import DetokenizeRequest, TokenizeConversation, TokenizeText
from serve.front import HELLO

REQUESTS = [
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    Prompting,
    ResponsesRequest,
    TokenizeConversation,
    TokenizeText,
    DetokenizeRequest,
]
MANY = 50_000
ODD = {f"odd{at}": at for at in range(MANY)}


def lists(schema: Any) -> Iterator[dict[str, Any]]:
    """The pydantic schema of every list that a body may contain."""
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else ():
        yield from lists(part)
    if isinstance(schema, dict) and schema.get("type") == "list":
        yield schema


@pytest.mark.parametrize("request_model", REQUESTS)
def test_every_list_ends_with_its_first_bad_item(request_model: type[BaseModel]):
    for one in lists(request_model.__pydantic_core_schema__):
        held = one.get("items_schema", {"type": "any"})
        assert one.get("fail_fast") or held["type"] == "any", one


@pytest.mark.parametrize(
    ("request_model", "body", "param"),
    [
        (CompletionRequest, {"prompt": [1, *[""] * MANY]}, "prompt[1]"),
        (CompletionRequest, {"prompt": [[1], *[[""] * 50] * 1000]}, "prompt[1][0]"),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": [""] * 1024}, "stop_token_ids[0]"),
        (CompletionRequest, {"prompt": "a", "logit_bias": dict.fromkeys(ODD, "")}, "logit_bias"),
        (CompletionRequest, {"prompt": "a", "metadata": ODD}, "metadata"),
        (CompletionRequest, {"prompt": "a", **ODD}, "odd0"),
        (CompletionRequest, {"prompt": "a", "prediction": {"type": "content", "content": "a", **ODD}}, "prediction.odd0"),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * 1024}] * 50}, "messages[0].content[0].type"),
        (ChatRequest, {"messages": HELLO, "chat_template_kwargs": {name: [] for name in ODD}}, "chat_template_kwargs"),
        (MessagesRequest, {"max_tokens": 1, "messages": [{"role": "user", "content": [{}] * 1024}] * 50}, "messages[0]"),
        (ResponsesRequest, {"input": [{"role": "user", "content": [{}] * 1024}] * 50}, "input[0].content[0].type"),
        (DetokenizeRequest, {"tokens": [-1] * MANY}, "tokens[0]"),
    ],
)
def test_a_body_with_many_flaws_is_refused_for_few(request_model: type[BaseModel], body: dict[str, Any], param: str):
    with pytest.raises(ValidationError) as refused:
        request_model.model_validate(body)
    assert refused.value.error_count() < 100
    assert str(explained(refused.value.errors()).param).startswith(param)


def test_a_mapping_holds_as_many_entries_as_it_may_and_no_more():
    most = {str(at): 0.5 for at in range(4096)}
    assert len(CompletionRequest.model_validate({"prompt": "a", "logit_bias": most}).logit_bias or ()) == 4096
    with pytest.raises(ValidationError, match="at most 4096 entries"):
        CompletionRequest.model_validate({"prompt": "a", "logit_bias": {**most, "4096": 0.5}})
    assert CompletionRequest.model_json_schema()["properties"]["logit_bias"]["anyOf"][0]["maxProperties"] == 4096


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ('{"at": [1]}', {"at": [1]}),
        ('{"at": ', '{"at": '),
        ("[1]", "[1]"),
        ('{"at": ' + "[" * 900 + "]" * 900 + "}", None),
        ('{"at": ' + "[" * 255 + "]" * 255 + "}", ...),
    ],
    ids=["none", "an object", "cut off", "no object", "too deep to be written again", "as deep as a body may be"],
)
def test_the_arguments_of_a_call_are_read_if_templates_can_write_them(text: str, read: Any) -> None:
    found = arguments(text)
    assert found == (text if read is None else json.loads(text) if read is ... else read)
