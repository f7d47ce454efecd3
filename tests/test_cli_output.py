"""Output that cannot be written: one sentence for a full disk, silence for a closed pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commandline import run, save_pair
from paceline import LLM
from paceline.engine.engine import Progress
from paceline.sampling import LogitsError

FULL = Path("/dev/full")
PACELINE = (sys.executable, "-m", "paceline")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_pair(tmp_path_factory.mktemp("models"))[0]


def commands(target: str) -> dict[str, list[str]]:
    """short: less than a buffer, so only the last flush fails. long: more than a buffer. typed: flushed at every step."""
    answer = ["generate", target, "-p", "the thin", "--draft", "none", "--max-tokens", "6"]
    return {"short": ["models", "--json"], "long": ["methods", "--json"], "typed": answer, "answer": [*answer, "--json"]}


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("kind", ["short", "long", "typed", "answer"])
def test_output_that_cannot_be_written_is_one_sentence_and_exit_code_2(target: str, kind: str) -> None:
    with FULL.open("w") as full:
        ended = subprocess.run([*PACELINE, *commands(target)[kind]], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.stderr == "paceline: the output cannot be written: No space left on device\n"
    assert ended.returncode == 2


@pytest.mark.parametrize("kind", ["short", "long", "typed", "answer"])
def test_a_reader_who_has_gone_is_told_nothing(target: str, kind: str) -> None:
    end, pipe = os.pipe()
    os.close(end)
    ended = subprocess.run([*PACELINE, *commands(target)[kind]], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    os.close(pipe)
    assert ended.returncode in (0, 141)
    assert "Error" not in ended.stderr
    assert "Exception" not in ended.stderr


def test_check_on_a_closed_pipe_exits_with_none_of_its_verdicts(target: str) -> None:
    end, pipe = os.pipe()
    os.close(end)
    command = [*PACELINE, "check", target, "--draft", "ngram", "--max-tokens", "4", "--temperature", "0"]
    ended = subprocess.run(command, stdout=pipe, stderr=subprocess.DEVNULL, check=False)
    os.close(pipe)
    assert ended.returncode not in (0, 1, 2, 3)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_a_mistake_exits_with_2_where_standard_error_cannot_be_written() -> None:
    command = [*PACELINE, "generate", "/no/such/folder", "-p", "x"]
    with FULL.open("w") as full:
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, check=False).returncode == 2
    assert subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *command], stdout=subprocess.DEVNULL, check=False).returncode == 2


@pytest.mark.parametrize("kind", ["short", "long", "typed", "answer"])
def test_a_command_with_standard_output_closed_exits_with_2_and_one_sentence(target: str, kind: str) -> None:
    command = ["sh", "-c", '"$@" >&-', "sh", *PACELINE, *commands(target)[kind]]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.stderr == "paceline: the output cannot be written: standard output is closed\n"
    assert ended.returncode == 2


@pytest.mark.parametrize("kind", ["long", "typed", "answer"])
def test_characters_that_the_output_has_not_are_written_by_their_number(target: str, kind: str) -> None:
    here = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([*PACELINE, *commands(target)[kind]], capture_output=True, env=here, check=False)
    assert ended.returncode == 0
    assert ended.stdout.isascii()
    assert b"Traceback" not in ended.stderr


def test_the_error_that_ends_an_answer_is_printed_on_its_own_line(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(self: LLM, *_: object) -> Iterator[Progress]:
        yield next(stream(self, "the thin"))
        raise LogitsError

    stream = LLM.stream
    monkeypatch.setattr(LLM, "stream", steps)
    assert run(monkeypatch, "generate", target, "-p", "the thin", "--draft", "none") == 2
    printed = capsys.readouterr()
    assert len(printed.out) > 1
    assert printed.out.endswith("\n")
    assert printed.err.count("\n") == 1
