"""Thoughts: told apart from the answer however the text is cut, and in chats whose template knows them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.serve.thoughts import Thoughts, is_open, thinks
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


def test_what_thinks_and_what_opens_a_thought() -> None:
    assert thinks("{{ '<think></think>' }}")
    assert not thinks("{{ messages }}")
    assert not thinks(None)
    assert is_open("<|assistant|><think>\n")
    assert not is_open("<think>\n\n</think>\n\n")


def thinker(**more: Any) -> FakeService:
    return FakeService(answer="<think>\nHm.\n</think>\n\nTwo.", chat_template="{{ messages }}</think>", **more)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_chat_tells_thoughts_by_themselves(step: int) -> None:
    message = post(thinker(step=step))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Two.")
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(thinker(step=step)) if chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Two."


def test_answers_in_a_form_and_of_models_that_do_not_think_are_left_alone() -> None:
    bound = post(thinker(), response_format={"type": "json_object"})["choices"][0]["message"]
    assert bound["content"].startswith("<think>")
    plain = post(FakeService(answer="<think>a</think>b", chat_template="{{ messages }}"))["choices"][0]["message"]
    assert plain["content"] == "<think>a</think>b"
    assert "reasoning_content" not in plain
