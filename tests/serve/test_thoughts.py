"""Thoughts: separated from the answer however the text is split, and in chats whose template supports them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.models.embedded import DEFAULT
from paceline.models.grammar import Grammars
from paceline.models.load import resolve
from paceline.models.tokenizer import Tokenizer
from paceline.params import Grammar
from paceline.serve.thoughts import Thoughts, ThoughtTokens, is_left_open, is_open, thinks
from serve.fakes import FakeService
from serve.front import CHAT

post, stream = CHAT.post, CHAT.stream
TEXTS = [
    ("<think>\nHm, 2.\n</think>\n\nTwo.", False, "Hm, 2.", "Two."),
    (" \n<think>a < b</think>c", False, "a < b", "c"),
    ("<think></think>c", False, "", "c"),
    ("<think>\n\n</think>\n\n", False, "", ""),
    ("<think>cut </thi", False, "cut </thi", ""),
    ("Hm.\n</think>\nTwo. <think>", True, "Hm.", "Two. <think>"),
    ("cut", True, "cut", ""),
    ("<thin ice>", False, "", "<thin ice>"),
    ("<thi", False, "", "<thi"),
    ("no </think> here", False, "", "no </think> here"),
    ("", False, "", ""),
]


@pytest.mark.parametrize(("text", "opened", "thought", "said"), TEXTS)
def test_a_thought_is_told_apart_however_it_is_cut(text: str, opened: bool, thought: str, said: str) -> None:
    draw = random.Random(0)
    for size in (1, 2, 3, 7, 100, 0):
        reader, found = Thoughts(opened), ["", ""]
        left = text
        while left:
            step = size or draw.randint(1, 5)
            for place, part in enumerate(reader.feed(left[:step])):
                found[place] += part
            left = left[step:]
        for place, part in enumerate(reader.end()):
            found[place] += part
        assert found == [thought, said], size


@pytest.mark.parametrize(
    ("text", "opened", "counted"),
    [
        ("<think>a</think>b", False, "<think>a</think>"),
        (" \n<think>a < b</think>c</think>", False, " \n<think>a < b</think>"),
        ("<thin ice>", False, ""),
        ("<thi", False, ""),
        ("<think>cut", False, "<think>cut"),
        ("Hm.</think>b", True, "Hm.</think>"),
        ("no </think> here", False, ""),
    ],
)
def test_the_tokens_of_a_thought_are_counted_with_its_marks(text: str, opened: bool, counted: str) -> None:
    for size in (1, 2, 5, 100):
        counter = ThoughtTokens(opened, lambda token: bytes([token]))
        for at in range(0, len(text), size):
            counter.see(text[at : at + size].encode())
        assert counter.count == len(counted), size


def test_thinking_templates_and_open_thoughts_are_recognised() -> None:
    assert thinks("{{ '<think></think>' }}")
    assert not thinks("{{ messages }}")
    assert not thinks(None)
    assert is_open("<|assistant|><think>\n")
    assert not is_open("<think>\n\n</think>\n\n")
    assert is_left_open("<think>\nSo far")
    assert not is_left_open("<think>\nSo far</think>\nIt")
    assert not is_left_open("It")


def thinker(**more: Any) -> FakeService:
    return FakeService(answer="<think>\nHm.\n</think>\n\nTwo.", chat_template="{{ messages }}</think>", **more)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_chat_returns_thoughts_as_reasoning_content(step: int) -> None:
    message = post(thinker(step=step))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Two.")
    usage = post(thinker(step=step), n=2)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * len("<think>\nHm.\n</think>")}
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(thinker(step=step)) if chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Two."


def test_answers_in_a_form_and_of_models_that_do_not_think_are_left_alone() -> None:
    bound = post(thinker(), response_format={"type": "json_object"})["choices"][0]["message"]
    assert bound["content"].startswith("<think>")
    plain = post(FakeService(answer="<think>a</think>b", chat_template="{{ messages }}"))["choices"][0]["message"]
    assert plain["content"] == "<think>a</think>b"
    assert "reasoning_content" not in plain


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


class Opener(FakeService):
    """Its template opens a thought; the end marker may be a special token."""

    special = False

    async def chat(self, *_: Any, answer_begun: bool = False, **__: Any) -> list[int]:
        return await self.encode("assistant: " if answer_begun else "assistant: <think>\n", add_special=False)

    async def special_id(self, marker: str) -> int | None:
        return 300 if self.special and marker == "</think>" else None


def opener(answer: str, **more: Any) -> Opener:
    return Opener(answer=answer, chat_template="{{ messages }}{{ tools }}</think><tool_call>", **more)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = Tokenizer(resolve(DEFAULT))
    return Grammars(tokenizer, tokenizer.vocab_size)


def verdict(grammars: Grammars, grammar: Grammar | None, text: str) -> str:
    """The state of `text`: "whole", "begun" if more must follow, or "refused"."""
    assert grammar is not None
    matcher = grammars._known(grammar).deep_copy()
    ids = grammars._library.tokenize_str(text)
    if matcher.try_consume_tokens(ids) < len(ids):
        return "refused"
    return "whole" if matcher.is_accepting() else "begun"


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, '{"a": 1}'),
    ({"guided_regex": "[0-9]+/s"}, "12/s"),
    ({"guided_choice": ["yes", "no"]}, "no"),
    ({"guided_grammar": 'start: "(" start? ")"'}, "(())"),
    ({"tools": [LOOK], "tool_choice": "required"}, CALL),
]


@pytest.mark.parametrize(("fields", "said"), FORMS)
def test_an_answer_in_a_form_ends_the_thought_of_its_prompt(fields: dict[str, Any], said: str, grammars: Grammars) -> None:
    service = opener(f"Hm, {CALL}?\n</think>\n\n{said}")
    choice = post(service, **fields)["choices"][0]
    assert choice["message"]["reasoning_content"] == f"Hm, {CALL}?"
    if said == CALL:
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["look"]
        assert choice["finish_reason"] == "tool_calls"
    else:
        assert choice["message"]["content"] == said
    params = service.asked[0][0].params
    assert params.skip_special_tokens
    assert verdict(grammars, params.grammar, f"Hm, {CALL}?\n</think>\n\n{said}") == "whole"
    assert verdict(grammars, params.grammar, "Hm</think>zz") == "refused"
    assert verdict(grammars, params.grammar, said) == "begun"
    assert params.grammar == service.grammars[-1]


def test_a_thought_that_the_model_opens_is_read_from_text_that_shows_what_ends_it() -> None:
    class Special(FakeService):
        async def special_id(self, marker: str) -> int | None:
            return 300 if marker == "</think>" else None

    service = Special(answer="<think>Hm.</think>Two.", chat_template="{{ messages }}</think>")
    message = post(service)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Two.")
    assert message["reasoning"] == "Hm.", "the name that OpenRouter's and OpenAI's Agents SDK read"
    assert not service.asked[0][0].params.skip_special_tokens


def test_a_thought_that_a_special_token_ends_is_read_from_text_that_shows_it() -> None:
    for fields in ({"response_format": {"type": "json_object"}}, {}):
        service = opener("Hm.</think>{}")
        service.special = True
        message = post(service, **fields)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "{}")
        params = service.asked[0][0].params
        assert not params.skip_special_tokens
        assert not fields or (params.grammar is not None and "<[300]>" in params.grammar.text)


@pytest.mark.parametrize("opened", [True, False])
def test_a_tool_call_written_within_a_thought_is_not_a_call(opened: bool, grammars: Grammars) -> None:
    begin = "" if opened else "<think>\n"
    answer = f"{begin}I could write <tool_call>, or {CALL}.\n</think>\n\nWell.\n{CALL}"
    service = opener(answer) if opened else FakeService(answer=answer, chat_template="{{ tools }}</think><tool_call>")
    message = post(service, tools=[LOOK])["choices"][0]["message"]
    assert message["reasoning_content"] == f"I could write <tool_call>, or {CALL}."
    assert message["content"] == "Well."
    assert len(message["tool_calls"]) == 1
    grammar = service.asked[0][0].params.grammar
    for text, wanted in [
        (answer, "whole"),
        (f"{begin}Only <tool_call> is thought", "whole"),
        (f"{begin}a</think>", "whole"),
        (f"{begin}a</think>Well.", "whole"),
        (f"{begin}a</think>Well. <tool_call>b", "refused"),
        ("<tool_call>b", "whole" if opened else "refused"),
        ("a <think> <tool_call>b", "whole" if opened else "refused"),
        (CALL, "whole"),
    ]:
        assert verdict(grammars, grammar, text) == wanted, text


def test_continuing_a_begun_answer_resumes_its_open_thought() -> None:
    for begun, told in (("<think>\nSo", ("Hm.", "Two.")), ("<think>\nSo</think>It", (None, "Hm.</think>Two."))):
        asked = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": begun}]
        message = post(opener("Hm.</think>Two."), messages=asked, continue_final_message=True)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == told
