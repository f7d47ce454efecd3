"""`paceline chat`: which messages are kept, what ends an answer and what ends the chat, and how lines are read."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commandline import run, save_pair
from paceline.cli.answering import Typed
from paceline.engine.llm import LLM
from paceline.engine.prefix import Prefixes
from paceline.models.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("ctrl_c_is_heard")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return save_pair(tmp_path_factory.mktemp("models"))


def test_chat_without_an_input_says_so(monkeypatch, capsys, models) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert run(monkeypatch, "chat", models[0]) == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_a_rule_that_changes_texts_is_refused_before_anybody_has_said_anything(monkeypatch, capsys, models) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    lossy = ("chat", models[0], "--draft", "ngram", "--verify", "typical")
    assert run(monkeypatch, *lossy) == 2
    assert "allow it by --lossy" in capsys.readouterr().err
    assert run(monkeypatch, *lossy, "--lossy") == 0


def test_an_answer_follows_a_grammar_which_is_read_before_anybody_has_said_anything(monkeypatch, capsys, models) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert run(monkeypatch, "chat", models[0], "--regex", "(a|b") == 2
    assert "the regular expression cannot be used" in capsys.readouterr().err
    assert run(monkeypatch, "chat", models[0], "--regex", "(a|b)!") == 0
    assert capsys.readouterr().out.strip() in {"a!", "b!"}


class _Typed(io.StringIO):
    """A terminal; typed lines are read by `input`."""

    def isatty(self) -> bool:
        return True


def typing(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[str]:
    """Simulates a person typing these lines; returns the list of prompts shown."""
    prompts, left = list[str](), iter(lines)

    def typed(prompt: str = "") -> str:
        prompts.append(prompt)
        return next(left)

    monkeypatch.setattr("sys.stdin", _Typed())
    monkeypatch.setattr("builtins.input", typed)
    return prompts


def conversations(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """Returns the list of conversations sent to the model from now on; each ends up as it was last shortened."""
    found: list[list[dict[str, str]]] = []
    chat = Tokenizer.chat

    def watched(self, messages, *rest, **more):
        found.append([*messages])
        return chat(self, messages, *rest, **more)

    monkeypatch.setattr(Tokenizer, "chat", watched)
    return found


def test_ctrl_c_ends_an_answer_and_not_the_chat(monkeypatch, capsys, models) -> None:
    shown, show = [], Typed.show

    def interrupted(self, progress):
        show(self, progress)
        shown.append(progress.text)
        if len(shown) == 12:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Typed, "show", interrupted)
    asked, prompts = conversations(monkeypatch), typing(monkeypatch, "the thin", "the thing", "")
    before = signal.getsignal(signal.SIGINT)
    assert run(monkeypatch, "chat", models[0], "--draft", "none", "--max-tokens", "30") == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{shown[11]}\n")
    assert "\n12 tokens" in f"\n{said.err}" or "\n11 tokens" in f"\n{said.err}"
    assert asked[-1] == [
        {"role": "user", "content": "the thin"},
        {"role": "assistant", "content": shown[11]},
        {"role": "user", "content": "the thing"},
    ]
    assert len(shown) > 30, "the second answer was not cut"
    assert prompts == ["> "] * 3
    assert signal.getsignal(signal.SIGINT) is before


def test_a_question_is_taken_back_where_nothing_was_said_to_it(monkeypatch, capsys, models) -> None:
    monkeypatch.setattr(Typed, "show", lambda self, progress: signal.raise_signal(signal.SIGINT))
    asked = conversations(monkeypatch)
    typing(monkeypatch, "the thin " * 40, "the thing", "")
    assert run(monkeypatch, "chat", models[0], "--draft", "none", "--max-tokens", "4") == 0
    assert asked[-1] == [{"role": "user", "content": "the thing"}]


@pytest.mark.parametrize("is_typed", [True, False])
def test_ctrl_c_ends_the_chat_at_its_prompt_and_where_nobody_types(monkeypatch, capsys, models, is_typed: bool) -> None:
    if is_typed:
        typing(monkeypatch)
        monkeypatch.setattr("builtins.input", lambda prompt: signal.raise_signal(signal.SIGINT))
    else:
        monkeypatch.setattr(Typed, "show", lambda self, progress: signal.raise_signal(signal.SIGINT))
        monkeypatch.setattr("sys.stdin", io.StringIO("the thin\nthe thing\n"))
    assert run(monkeypatch, "chat", models[0], "--draft", "none", "--max-tokens", "4") == 130


def test_the_system_message_is_kept_when_old_exchanges_are_cut(monkeypatch, capsys, models) -> None:
    asked = conversations(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*["the thing in the inn " * 3] * 12, "", ""])))
    assert run(monkeypatch, "chat", models[0], "--draft", "none", "--max-tokens", "8", "--system", "the inn") == 0
    assert all(messages[0] == {"role": "system", "content": "the inn"} for messages in asked)
    assert all([one["role"] for one in messages[1:3]] in (["user"], ["user", "assistant"]) for messages in asked)
    assert len(asked[-1]) < 2 * 12, "the oldest exchanges were cut"


def test_chat_is_sampled_as_generate_is(monkeypatch, capsys, models) -> None:
    found, stream = [], LLM.stream
    monkeypatch.setattr(LLM, "stream", lambda self, ids, params: found.append(params) or stream(self, ids, params))
    shape = {"top_k": 9, "min_p": 0.05, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    options = [word for name, value in shape.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    monkeypatch.setattr("sys.stdin", io.StringIO("the thin\n"))
    call = ("chat", models[0], "--draft", "none", "--max-tokens", "4", "--temperature", "1", "--stop", "inn", "--stop", "q")
    assert run(monkeypatch, *call, *options) == 0
    assert {name: getattr(found[0], name) for name in shape} == shape
    assert found[0].stop == ("inn", "q")
    assert run(monkeypatch, "chat", models[0], "--min-p", "2") == 2
    assert "--min-p 2.0" in capsys.readouterr().err


def test_chat_keeps_the_cache_between_turns(monkeypatch, capsys, models) -> None:
    found = []
    begin = Prefixes.begin

    def watched(self, sequence, room):
        begin(self, sequence, room)
        found.append((sequence.cached_tokens, len(sequence.prompt)))

    monkeypatch.setattr(Prefixes, "begin", watched)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'the thin ' * 40}\nthe thing\n\n"))
    assert run(monkeypatch, "chat", models[0], "--draft", "ngram", "--max-tokens", "8") == 0
    (first, size), (second, _) = found
    assert first == 0
    assert second >= size, "the second turn starts from the cache of the first"


def test_a_conversation_longer_than_the_context_is_not_read_anew_in_every_turn(monkeypatch, capsys, models) -> None:
    found = []
    begin = Prefixes.begin

    def watched(self, sequence, room):
        begin(self, sequence, room)
        found.append(sequence.cached_tokens)

    monkeypatch.setattr(Prefixes, "begin", watched)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*["the thing in the inn " * 3] * 24, "", ""])))
    assert run(monkeypatch, "chat", models[0], "--draft", "ngram", "--max-tokens", "8") == 0
    assert len(found) == 24
    lost = [turn for turn, cached in enumerate(found[1:], 1) if not cached]
    assert 0 < len(lost) <= 8, "it was cut now and then"


def test_chat_makes_room_for_answers_and_survives_what_cannot_fit(monkeypatch, capsys, models) -> None:
    asked, fits, stream = [], [], LLM.stream

    def watched(self, ids, params):
        asked.append(self.tokenizer.decode(ids))
        fits.append(len(ids) + 40 <= self.engine.longest)
        # answers are limited to 40 tokens here
        return stream(self, ids, params.model_copy(update={"max_tokens": min(params.max_tokens, 40)}))

    monkeypatch.setattr(LLM, "stream", watched)
    said = ["the thin thing " * 4, "the thin " * 5000, *["the thing in the inn " * 3] * 8]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*said, "", ""])))
    assert run(monkeypatch, "chat", models[0], "--draft", "ngram", "--max-tokens", "40") == 0
    assert "say it in fewer" in capsys.readouterr().err
    assert fits == [True] * 9
    # whatever the limit of answers, old messages are kept while they fit into half of the context
    asked.clear()
    monkeypatch.setattr("sys.stdin", io.StringIO("the thin thing\nthe inn\n\n"))
    assert run(monkeypatch, "chat", models[0], "--draft", "ngram", "--max-tokens", "100000") == 0
    assert ["thin thing" in one for one in asked] == [True, True]


def test_a_line_longer_than_a_terminal_holds_is_read_whole(models) -> None:
    pytest.importorskip("readline")
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "paceline", "chat", models[0], "--draft", "none", "--max-tokens", "4"]
    here = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=here) as chat:
        os.close(theirs)
        assert b"> " in _read(ours, b"> ")
        line = b"inn the " * 1500
        for start in range(0, len(line), 256):
            os.write(ours, line[start : start + 256])
            # read the echo, which would fill the terminal's buffer
            _read(ours, b"", 0.01)
        os.write(ours, b"\n")
        _read(ours, b"> ")
        os.write(ours, b"\n")
        said = chat.communicate(timeout=60)[1].decode()
        os.close(ours)
    found = next(line for line in said.splitlines() if line.startswith("that is"))
    # more than the 4095 bytes that a terminal without line editing returns
    assert int(found.split()[2]) >= len(Tokenizer(Path(models[0])).encode(line.decode().strip()))
    assert chat.returncode == 0


def _read(terminal: int, until: bytes, wait_s: float = 60.0) -> bytes:
    """Reads a terminal until `until` is in the output, or until nothing more comes for `wait_s`."""
    found, end = b"", time.monotonic() + wait_s
    while not (until and until in found) and select.select([terminal], [], [], max(end - time.monotonic(), 0.0))[0]:
        found += os.read(terminal, 1 << 16)
    return found
