"""Ctrl-C: whenever it comes, the command line ends silently with exit code 130."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commandline import run, save_pair
from paceline.cli.answering import Typed
from paceline.interrupts import end_at_once, raise_again
from paceline.kernels import compiled
from paceline.kernels.compilers import CompileError

pytestmark = pytest.mark.usefixtures("ctrl_c_is_heard")
WRAPPED = """
import os, signal, sys
class Interrupting:
    '''Interrupts while a module is imported, and loses the exception as torch and transformers do.'''
    def find_spec(self, name, *_):
        if name == {name!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.{before})
from paceline.__main__ import main
main()
"""


def interrupted(name: str, before: str, target: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line and interrupts it when it begins to import a module."""
    command = [sys.executable, "-c", WRAPPED.format(name=name, before=before)]
    arguments = ["generate", target, "-p", "the thin", "--draft", "none", "--max-tokens", "4"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_pair(tmp_path_factory.mktemp("models"))[0]


@pytest.mark.parametrize("name", ["typer", "rich.console", "numpy", "torch", "torch.nn", "paceline.engine.llm", "tokenizers"])
def test_an_interrupt_while_modules_are_imported_ends_it_at_once(target: str, name: str) -> None:
    ended = interrupted(name, "default_int_handler", target)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_process_that_ignores_sigint_is_not_ended_by_one(target: str) -> None:
    ended = interrupted("torch", "SIG_IGN", target)
    assert ended.returncode == 0
    assert ended.stdout


def test_an_interrupt_of_an_answer_is_raised_where_it_can_be_cleared_up(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cleared = []

    def show(self: Typed, progress: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            cleared.append(progress)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Typed, "show", show)
    assert run(monkeypatch, "generate", target, "-p", "the thin", "--draft", "none") == 130
    assert len(cleared) == 1
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("command", "work"),
    [
        (["datastore", "build", "a.txt", "--out", "out"], "paceline.datastore.build"),
        (["bench", "--tasks", "e2e"], "paceline.bench.runner.run"),
        (["bench", "serve", "--url", "http://127.0.0.1:9", "--tasks", "e2e"], "paceline.bench.load.sweep.run"),
        (["serve"], "paceline.serve.settings.load"),
    ],
)
def test_an_interrupt_of_datastore_bench_or_serve_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str], work: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert run(monkeypatch, *command) == 130


def test_an_interrupt_is_raised_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def compile(*_: object) -> None:
        found.append(signal.getsignal(signal.SIGINT))
        raise CompileError("gone")

    monkeypatch.setattr(compiled.Compilers, "compile", compile)
    end_at_once()
    try:
        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(CompileError):
            compiled._compiled([])
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        raise_again()
    assert found == [signal.default_int_handler]
    assert before is not signal.default_int_handler


def test_an_interrupt_while_libraries_clear_up_is_silent_too(target: str) -> None:
    program = (
        "import atexit, os, signal, sys; from paceline.__main__ import main;"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT)); main()"
    )
    ended = subprocess.run([sys.executable, "-c", program, "models", "--json"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")
    assert ended.stdout.startswith("{")
