"""Texts prepared in threads: their length limits, fair queues, and templates that do not end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
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
from paceline.serve import recording, texts as texts_module
from paceline.serve.errors import APIError
from paceline.serve.recording import Record
from paceline.serve.texts import Texts, sampling_defaults

MOST, WAITING = 1000, 20
MODEL = resolve(DEFAULT)
ENDLESS = f"""
import asyncio, sys, time
from paceline.models.tokenizer import Tokenizer
from paceline.serve import texts
from paceline.params import Grammar
from paceline.serve.errors import APIError

async def main():
    held = texts.Texts(Tokenizer({str(MODEL)!r}), 1024, 1000, 8)
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
    return Texts(Tokenizer(MODEL), 1024, MOST, WAITING)


def chat(texts: Texts, content: str, tools: list[Any] | None = None, **more: Any) -> list[int]:
    messages = [{"role": "user", "content": content, **more}]
    return asyncio.run(texts.chat(messages, tools or [], False, {}))


def asked(texts: Texts, queue: str, key: int | None, text: str) -> asyncio.Task[Any]:
    """A request with this API key, and a text or a grammar to prepare."""
    token = recording._current.set(Record(key=key))
    try:
        grammar = Grammar(kind="regex", text=text)
        return asyncio.create_task(texts.encode(text, False) if queue == "texts" else texts.check(grammar))
    finally:
        recording._current.reset(token)


def prepared_by(texts: Texts, monkeypatch: pytest.MonkeyPatch, work: Callable[[str], object]) -> None:
    """Prepare texts and grammars with `work`."""
    monkeypatch.setattr(texts, "tokenizer", SimpleNamespace(encode=lambda text, special: work(text)))
    monkeypatch.setattr(texts, "_grammars", SimpleNamespace(check=lambda grammar: work(grammar.text)))


@pytest.mark.parametrize("queue", ["texts", "grammars"])
def test_the_long_texts_of_one_key_keep_no_other_waiting(texts: Texts, monkeypatch: pytest.MonkeyPatch, queue: str):
    begun = list[str]()

    def work(text: str) -> None:
        begun.append(text)
        time.sleep(0.05 if len(text) > 2 else 0)

    prepared_by(texts, monkeypatch, work)
    # less than the crowd takes, with either number of threads
    monkeypatch.setattr(texts_module, "_LONGEST_WAIT_S", 0.4)

    async def scene() -> None:
        crowd = [asked(texts, queue, 0, "long") for _ in range(WAITING)]
        await asyncio.sleep(0.01)
        before = len(begun)
        await asyncio.gather(*(asked(texts, queue, key, "hi") for key in (1, None)))
        # before it come the running ones and, on a busy machine, those that began while it was submitted
        assert begun.index("hi") <= before + 4 < WAITING
        await asyncio.gather(*crowd, return_exceptions=True)

    asyncio.run(scene())


@pytest.mark.parametrize("queue", ["texts", "grammars"])
def test_a_key_has_no_more_waiting_than_it_may_and_who_leaves_makes_room(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, queue: str
):
    go = Event()
    prepared_by(texts, monkeypatch, lambda text: go.wait(20))

    async def scene() -> None:
        running = [asked(texts, queue, 0, "runs") for _ in range(2 if queue == "texts" else 1)]
        await asyncio.sleep(0.05)
        crowd = [asked(texts, queue, 0, "waits") for _ in range(WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(APIError, match="busy") as refused:
            await asked(texts, queue, 0, "late")
        assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "overloaded", 1)
        left = crowd.pop()
        left.cancel()
        await asyncio.wait([left])
        others = [asked(texts, queue, key, "waits") for key in (0, 1)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*running, *crowd, *others)

    asyncio.run(scene())


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
def test_a_bad_grammar_is_a_400_and_a_busy_compiler_a_503(
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


def test_names_tool_calls_and_tools_count_towards_the_length_limit(texts: Texts):
    assert chat(texts, "a" * (MOST - 50), name="b" * 50)
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"at": "б" * (MOST // 2)}}}
    assert chat(texts, "", tool_calls=[call])
    tool = {"type": "function", "function": {"name": "look", "description": "б" * (MOST // 2)}}
    assert chat(texts, "", [tool])
    beyond: list[dict[str, Any]] = [{"name": "b" * 51}, {"tool_calls": [call, call]}, {"tools": [tool, tool]}]
    for more in beyond:
        with pytest.raises(APIError, match="characters"):
            chat(texts, "a" * (MOST - 50), **more)


def test_an_endless_template_is_given_up_and_does_not_keep_the_process_alive():
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=30, check=False)
    late, busy = "the text of this request takes too long to prepare", "the server is busy; try again later"
    # the third finds no thread free; that is not its fault, so it may retry
    assert ended.stdout.splitlines() == [f"{late}, 400"] * 2 + [f"{busy}, 503"]
    assert (ended.returncode, ended.stderr) == (0, "")


def test_errors_show_the_models_name_and_not_its_path(texts: Texts):
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


def test_only_valid_sampling_fields_of_generation_config_become_defaults(tmp_path: Any):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "top_p": 7, "max_tokens": 9, "max_new_tokens": 9}')
    assert sampling_defaults(tmp_path) == {"temperature": 0.5}
