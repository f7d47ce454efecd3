"""One system message: what a template that takes no other sees of a conversation with several."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.models.base import ModelError
from paceline.models.embedded import DEFAULT
from paceline.models.load import resolve
from paceline.models.tokenizer import Tokenizer
from paceline.serve.errors import APIError
from paceline.serve.one_system import with_one_system
from paceline.serve.texts import Texts


def messages(*said: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in said]


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        (
            messages(("system", "a"), ("system", ""), ("system", "b"), ("user", "c")),
            messages(("system", "a\n\nb"), ("user", "c")),
        ),
        (
            messages(("user", "a"), ("system", "b"), ("user", "c"), ("user", "d")),
            messages(("user", "a\n\nb\n\nc"), ("user", "d")),
        ),
        (
            messages(("user", "a"), ("assistant", "b"), ("system", "c"), ("assistant", "d")),
            messages(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")),
        ),
        (
            [*messages(("user", "a")), {"role": "tool", "tool_call_id": "1", "content": "b"}, *messages(("system", "c"))],
            [*messages(("user", "a")), {"role": "tool", "tool_call_id": "1", "content": "b"}, *messages(("user", "c"))],
        ),
        (messages(("user", "a"), ("user", "b")), messages(("user", "a"), ("user", "b"))),
        ([], []),
    ],
)
def test_later_ones_go_into_the_users_turn(given: list[dict[str, Any]], settled: list[dict[str, Any]]) -> None:
    before = [dict(one) for one in given]
    assert with_one_system(given) == settled
    assert given == before


@pytest.mark.parametrize("strict", [False, True])
def test_a_conversation_is_changed_only_where_the_template_refuses_it(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    """Qwen3.5's template raises on a system message that is not the first. Codex and LangChain send them."""
    texts = Texts(Tokenizer(resolve(DEFAULT)), 1024, 1000, 2)
    seen: list[Any] = []

    def chat(given: list[dict[str, Any]], *_: Any, **__: Any) -> list[int]:
        seen.append(given)
        if strict and any(one["role"] == "system" for one in given[1:]):
            raise ModelError("System message must be at the beginning.")
        return [1]

    monkeypatch.setattr(texts, "tokenizer", SimpleNamespace(chat=chat, path=texts.tokenizer.path))
    later = messages(("user", "a"), ("system", "b"))
    assert asyncio.run(texts.chat(later, [], False, {})) == [1]
    assert seen == [later, with_one_system(later)][: 1 + strict]


def test_a_template_that_fails_on_either_is_tried_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts(Tokenizer(resolve(DEFAULT)), 1024, 1000, 2)
    seen: list[Any] = []

    def chat(given: list[dict[str, Any]], *_: Any, **__: Any) -> list[int]:
        seen.append(given)
        raise ModelError("it always fails")

    monkeypatch.setattr(texts, "tokenizer", SimpleNamespace(chat=chat, path=texts.tokenizer.path))
    for given, times in ((messages(("user", "a")), 1), (messages(("user", "a"), ("system", "b")), 2)):
        seen.clear()
        with pytest.raises(APIError, match="it always fails"):
            asyncio.run(texts.chat(given, [], False, {}))
        assert len(seen) == times
