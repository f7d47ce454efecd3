"""/tokenize, /detokenize and /tokenizer_info over a service without an engine."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.serve.routes.tokens import router
from serve.fakes import BOS, EOS, VOCAB, FakeService
from serve.front import client_of, refusal


def post(path: str, body: dict[str, Any], service: FakeService | None = None) -> dict[str, Any]:
    answer = client_of(service or FakeService(), router).post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_tokenize_takes_a_text():
    told = {"count": 3, "max_model_len": 512, "tokens": [BOS, 97, 98], "token_strs": None}
    assert post("/tokenize", {"prompt": "ab"}) == told
    assert post("/tokenize", {"prompt": "", "add_special_tokens": False})["tokens"] == []
    told = post("/tokenize", {"prompt": "aü", "add_special_tokens": False, "return_token_strs": True, "model": "fake-model"})
    assert told["token_strs"] == ["a", "\ufffd", "\ufffd"]


def test_tokenize_takes_a_conversation():
    service = FakeService(chat_template="{{ tools }} <tool_call>")
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "he"}]
    told = post("/tokenize", {"messages": messages, "tools": [tool], "continue_final_message": True}, service)
    assert told["count"] == len(told["tokens"])
    assert service.chats == [(messages, [tool], True)]


def test_detokenize():
    assert post("/detokenize", {"tokens": [BOS, 97, EOS]}) == {"prompt": "<s>a</s>"}
    assert post("/detokenize", {"tokens": []}) == {"prompt": ""}


def test_tokenizer_info_and_tokenize_answer_what_lm_eval_probes():
    client = client_of(FakeService(), router)
    info = client.get("/tokenizer_info").json()
    assert (info["eos_token"], info["bos_token"], info["pad_token"]) == ("</s>", "<s>", None)
    assert info["chat_template"] == FakeService().chat_template
    assert isinstance(client.post("/tokenize", json={"prompt": "test", "add_special_tokens": False}).json()["tokens"], list)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "prompt": "a"}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}, "chat_template"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**31]}, "tokens[0]"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_refused(path: str, body: dict[str, Any], param: str):
    assert refusal(client_of(FakeService(), router), path, body)[:2] == (400, param)


def test_limits_and_names():
    client = client_of(FakeService(), router, max_prompt_chars=3)
    assert refusal(client, "/tokenize", {"prompt": "abcd"})[:2] == (400, "prompt")
    assert refusal(client, "/tokenize", {"messages": [{"role": "user", "content": "abcd"}]})[:2] == (400, "messages")
    assert refusal(client, "/detokenize", {"tokens": [1] * 4})[:2] == (400, "tokens")
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
        assert refusal(client, path, {**body, "model": "other"})[:2] == (404, "model")
