"""Where the command line's output goes nowhere: one sentence for a full disk, none for a reader who has seen enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commandline import save_pair

FULL = Path("/dev/full")
PACELINE = (sys.executable, "-m", "paceline")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_pair(tmp_path_factory.mktemp("models"))[0]


def commands(target: str) -> dict[str, list[str]]:
    """short: less than a buffer, so that only the last flush fails. long: more, and typed: flushed at every step."""
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
    assert ended.returncode in (0, 1)
    assert "Error" not in ended.stderr
    assert "Exception" not in ended.stderr
