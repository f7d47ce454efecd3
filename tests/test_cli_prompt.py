"""Where `paceline generate` takes its prompt from: the command line, a file, or standard input."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from commandline import run, save_pair

SAID = "the thin thing – naïve"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_pair(tmp_path_factory.mktemp("models"))[0]


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "ascii"))


def answered(monkeypatch: pytest.MonkeyPatch, capsys, target: str, *prompt: str) -> tuple[int, list[int]]:
    """Returns the number of prompt tokens and the number of answer tokens."""
    assert run(monkeypatch, "generate", target, "--draft", "none", "--max-tokens", "6", "--json", *prompt) == 0
    answer = json.loads(capsys.readouterr().out)
    return answer["usage"]["prompt_tokens"], answer["token_ids"]


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        (SAID.encode(), SAID),
        (f"{SAID}\n".encode(), SAID),
        (f"{SAID}\r\n".encode(), SAID),
        (f"\ufeff{SAID}".encode(), SAID),
        (f" \n{SAID}\n\n".encode(), f" \n{SAID}\n"),
    ],
    ids=["bare", "line", "crlf", "bom", "lines"],
)
def test_a_prompt_is_read_but_for_the_line_break_at_its_end(
    monkeypatch, capsys, target: str, tmp_path: Path, content: bytes, prompt: str
) -> None:
    expected = answered(monkeypatch, capsys, target, "-p", prompt)
    file = tmp_path / "prompt.txt"
    file.write_bytes(content)
    assert answered(monkeypatch, capsys, target, "--prompt-file", str(file)) == expected
    piped(monkeypatch, content)
    assert answered(monkeypatch, capsys, target, "-p", "-") == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "holds no text"), (b"\n", "holds no text"), (b"the \xff", "is not UTF-8 text: see byte 4"), (b"x" * 12, "is larger")],
)
def test_an_empty_undecodable_or_too_large_prompt_gets_one_sentence_and_exit_code_2(
    monkeypatch, capsys, target: str, tmp_path: Path, content: bytes, expected: str
) -> None:
    monkeypatch.setattr("paceline.cli.generate._LARGEST_BYTES", 10)
    file = tmp_path / "prompt.txt"
    file.write_bytes(content)
    piped(monkeypatch, content)
    for prompt, name in ((("--prompt-file", str(file)), f"'{file}'"), (("-p", "-"), "standard input")):
        assert run(monkeypatch, "generate", target, *prompt) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"paceline: {name} {expected}")
        assert len(said.err.splitlines()) == 1


def test_no_more_of_a_stream_is_read_than_a_prompt_may_have(monkeypatch, capsys, target: str) -> None:
    """A device may never end."""
    assert run(monkeypatch, "generate", target, "--prompt-file", "/dev/zero") == 2
    assert "'/dev/zero' is larger than the 16 MiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (("--prompt-file", "/no/such/file"), "cannot read '/no/such/file': No such file or directory"),
        (("--prompt-file", "/"), "cannot read '/': Is a directory"),
        (("--prompt-file", "/dev/null", "-p", "x"), "not by both"),
        (("-p", ""), "a prompt is needed"),
    ],
)
def test_a_prompt_that_is_not_there_gets_one_sentence_and_exit_code_2(
    monkeypatch, capsys, target: str, prompt: tuple[str, ...], expected: str
) -> None:
    assert run(monkeypatch, "generate", target, *prompt) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert len(said.splitlines()) == 1


def test_standard_input_that_was_closed_is_said_to_be(monkeypatch, capsys, target: str) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert run(monkeypatch, "generate", target, "-p", "-") == 2
    assert "standard input is closed" in capsys.readouterr().err
