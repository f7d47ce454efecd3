"""What is done to texts in threads: how long they may be, and templates that do not end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.constraint import GrammarError, GrammarsBusy
from paceline.models.base import ModelError
from paceline.models.embedded import DEFAULT
from paceline.models.load import resolve
from paceline.models.tokenizer import Tokenizer
from paceline.params import Grammar
from paceline.serve.errors import APIError
from paceline.serve.texts import Texts, sampling_defaults

MOST = 1000
MODEL = resolve(DEFAULT)
ENDLESS = f"""
import asyncio, sys, time
from paceline.models.tokenizer import Tokenizer
from paceline.serve import texts
from paceline.params import Grammar
from paceline.serve.errors import APIError

async def main():
    held = texts.Texts(Tokenizer({str(MODEL)!r}), 1024, 1000)
    texts._LONGEST_WAIT_S = 0.1
    for _ in range(3):
        try:
            await held.run(lambda: time.sleep(600))
        except APIError as error:
            print(error, error.status, sep=", ", flush=True)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts(Tokenizer(MODEL), 1024, MOST)


def chat(texts: Texts, content: str, tools: list[Any] | None = None, **more: Any) -> list[int]:
    messages = [{"role": "user", "content": content, **more}]
    return asyncio.run(texts.chat(messages, tools or [], False, {}))


def test_texts_do_not_wait_for_grammars(texts: Texts, monkeypatch: pytest.MonkeyPatch):
    checked = Event()
    monkeypatch.setattr(texts, "_grammars", SimpleNamespace(check=lambda grammar: checked.wait(20)))

    async def scene() -> None:
        checks = asyncio.gather(*(texts.check(Grammar(kind="regex", text="a")) for _ in range(3)))
        await asyncio.sleep(0)
        assert await texts.encode("a", False)
        assert not checks.done()
        checked.set()
        await checks

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (GrammarError("it says nothing"), (400, None, None)),
        (GrammarsBusy("no grammar can be compiled now"), (503, "overloaded", 1)),
    ],
)
def test_a_grammar_is_refused_for_what_it_says_or_for_now(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, error: GrammarError, told: tuple[object, ...]
):
    def fails(grammar: Grammar) -> None:
        raise error

    monkeypatch.setattr(texts, "_grammars", SimpleNamespace(check=fails))
    with pytest.raises(APIError) as refused:
        asyncio.run(texts.check(Grammar(kind="regex", text="a")))
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == told


@pytest.mark.parametrize("letter", ["a", "я", "東", "😀", "\n", '"', "\\"])
def test_a_conversation_is_as_long_as_its_characters_in_every_script(texts: Texts, letter: str):
    assert chat(texts, letter * MOST)
    with pytest.raises(APIError, match=f"more than {MOST} characters") as refused:
        chat(texts, letter * (MOST + 1))
    assert (refused.value.status, refused.value.code) == (400, "text_too_long")
    assert asyncio.run(texts.encode(letter * MOST, False))
    with pytest.raises(APIError, match=f"more than {MOST} characters"):
        asyncio.run(texts.encode(letter * (MOST + 1), False))


def test_all_that_a_template_shows_counts(texts: Texts):
    assert chat(texts, "a" * (MOST - 50), name="b" * 50)
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"at": "б" * (MOST // 2)}}}
    assert chat(texts, "", tool_calls=[call])
    tool = {"type": "function", "function": {"name": "look", "description": "б" * (MOST // 2)}}
    assert chat(texts, "", [tool])
    beyond: list[dict[str, Any]] = [{"name": "b" * 51}, {"tool_calls": [call, call]}, {"tools": [tool, tool]}]
    for more in beyond:
        with pytest.raises(APIError, match="characters"):
            chat(texts, "a" * (MOST - 50), **more)


def test_what_does_not_end_is_given_up_and_does_not_keep_the_process():
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=30, check=False)
    late, busy = "the text of this request takes too long to prepare", "the server is busy; try again later"
    # the third finds no thread: others are to blame, and it may come again
    assert ended.stdout.splitlines() == [f"{late}, 400"] * 2 + [f"{busy}, 503"]
    assert (ended.returncode, ended.stderr) == (0, "")


def test_where_the_model_lies_is_not_told(texts: Texts):
    def fails() -> None:
        raise ModelError(f"the model in '{MODEL}' has no chat template")

    with pytest.raises(APIError, match=f"the model in '{MODEL.name}' has no chat template") as refused:
        asyncio.run(texts.run(fails))
    assert refused.value.status == 400


def test_a_thread_goes_on_after_work_that_failed(texts: Texts):
    def fails() -> None:
        raise ZeroDivisionError

    for _ in range(8):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(texts.run(fails))
    assert asyncio.run(texts.run(lambda: 3)) == 3


def test_a_checkpoint_says_how_to_draw_and_nothing_else(tmp_path: Any):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "top_p": 7, "max_tokens": 9, "max_new_tokens": 9}')
    assert sampling_defaults(tmp_path) == {"temperature": 0.5}
