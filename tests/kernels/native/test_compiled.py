"""Kernels on disk: made in processes of their own, whole or not read, and run without the compiler."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.kernels import cache_folder, compiled, compiler
from paceline.kernels.compiled import CompileError, Kernel, ready
from paceline.kernels.lookups import Lookup
from paceline.kernels.native.entries import IDLE, LEAD, WORK
from paceline.kernels.ngrams.votes import KERNELS

SAID = "compiling kernels for this processor"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for kernels, used as long as the test runs."""
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path))
    cache_folder.folder.cache_clear()
    yield tmp_path
    cache_folder.folder.cache_clear()


def defined(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], **arguments: str) -> Lookup:
    """A lookup of a function, compiled in this process."""
    module = ModuleType("paceline.kernels.of_a_test")
    module.it = function  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    lookup = Lookup("of_a_test.it", **arguments)
    compiled.write(lookup, compiler.object_code(lookup))
    return lookup


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_compiling_is_told_and_reading_from_disk_is_not(kept: Path) -> None:
    code = (
        "import logging, sys; logging.basicConfig(level=logging.INFO)\n"
        "from paceline.kernels.native.entries import LEAD, IDLE\n"
        "print(LEAD.address > 0, IDLE.address > 0, 'numba' in sys.modules)"
    )
    for told in (True, False):
        ran = run(code)
        assert (ran.returncode, ran.stdout.split()) == (0, ["True", "True", "False"]), ran.stderr
        assert (SAID in ran.stderr) == told
    assert len([*kept.glob("*.o")]) == 2
    assert len([*kept.iterdir()]) == 2, "nothing else is left"


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "of other sources"])
def test_what_is_not_whole_is_compiled_anew(kept: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ready([Kernel(IDLE.name)])
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(whole[:-1])
        case "changed":
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case "emptied":
            file.write_bytes(b"")
        case _:
            monkeypatch.setattr(compiled, "SOURCES", "of an older version")
    again = Kernel(IDLE.name)
    assert not compiled._loaded(again)
    monkeypatch.undo()
    monkeypatch.setenv(cache_folder.VARIABLE, str(kept))
    if damage == "of other sources":
        file.unlink()
    ran = run("from paceline.kernels.native.entries import IDLE; print(IDLE.address > 0)")
    assert ran.stdout.strip() == "True", ran.stderr
    assert file.read_bytes() == whole, "the same code is made of the same sources"


def test_several_are_compiled_side_by_side_and_each_once(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []
    work_off = compiled._work_off
    monkeypatch.setattr(compiled, "_work_off", lambda waiting: (started.append(1), work_off(waiting)))
    kernels = [Kernel(kernel.name) for kernel in (IDLE, WORK, LEAD)]
    with caplog.at_level(logging.INFO, "paceline"):
        ready([*kernels, *kernels])
        ready(kernels)
    assert all(kernel.address for kernel in kernels)
    assert len(started) == min(os.cpu_count() or 1, 3, compiled._MOST_COMPILERS)
    assert len(caplog.messages) == 1


def test_a_kernel_that_cannot_be_compiled_says_why(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError, match=r"^the kernel paceline\.native\.pool\.nap cannot be compiled: AttributeError: "):
        ready([Kernel("native.pool.nap")])
    monkeypatch.setattr(sys, "executable", str(kept / "nothing"))
    with pytest.raises(CompileError, match=r"'.*nothing' cannot be run: No such file"):
        ready([Kernel(IDLE.name)])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CompileError, match="its compiler ended"):
        ready([Kernel(IDLE.name)])


def test_every_command_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("paceline")
    monkeypatch.setattr(log, "level", logging.NOTSET)
    assert CliRunner().invoke(app, ["models"]).exit_code == 0
    assert log.isEnabledFor(logging.INFO)
    assert log.handlers


def test_a_run_imports_no_compiler() -> None:
    """It takes seventy megabytes, and a third of a start."""
    code = (
        "import sys; from paceline import LLM, SamplingParams\n"
        "llm = LLM(draft='ngram+suffix+recycle')\n"
        "print(len(llm.generate('name[The Punter]', SamplingParams(max_tokens=8))[0].token_ids), 'numba' in sys.modules)"
    )
    ran = run(code)
    assert ran.stdout.split() == ["8", "False"], ran.stderr


def test_code_that_needs_more_than_the_c_library_is_refused(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def makes_an_array(count: Any) -> Any:
        return np.ones(count).sum()

    with pytest.raises(TypeError, match="returns float64"):
        defined(monkeypatch, makes_an_array, count="int64")
    with pytest.raises(TypeError, match="it calls NRT_"):
        defined(monkeypatch, lambda count: np.int64(np.ones(count)[0]), count="int64")


def test_arrays_and_numbers_arrive_as_they_are(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def it(whole: Any, table: Any, fraction: Any, cube: Any, out: Any) -> Any:
        out[0], out[1] = fraction, cube[1, 2, 3]
        return whole + table[1, 0] * 10 + table.shape[1] * 100 + len(table) * 1000 + cube.size * 10000

    kinds = {"whole": "int64", "table": "int32[:,:]", "fraction": "float64", "cube": "float64[:,:,:]", "out": "float64[:]"}
    lookup = defined(monkeypatch, it, **kinds)
    table, cube, out = np.array([[1, 2, 3], [4, 5, 6]], np.int32), np.arange(24.0).reshape(2, 3, 4), np.zeros(2)
    assert lookup(7, table, 0.25, cube, out) == 7 + 40 + 300 + 2000 + 240000
    assert out.tolist() == [0.25, 23.0]
    call = lookup.call(table=table, cube=cube, out=out, fraction=0.5)
    call.record.whole = -7
    assert call() == -7 + 40 + 300 + 2000 + 240000
    call.give(table=np.full((3, 1), 2, np.int32))
    assert call() == -7 + 20 + 100 + 3000 + 240000, "the others are as they were"


@pytest.mark.parametrize("table", [np.zeros((2, 2)), np.zeros(2, np.int32), np.zeros((2, 4), np.int32)[:, ::2]])
def test_an_array_of_another_kind_is_refused(table: np.ndarray) -> None:
    (grown,) = (kernel for kernel in KERNELS if isinstance(kernel, Lookup) and kernel.name.endswith("filled"))
    with pytest.raises(TypeError, match=r"ngrams\.index\.filled takes for 'tables' int32\[:,:\] in rows, not .* of shape"):
        grown.call(tables=table)


def test_what_a_definition_raises_is_no_answer(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def it(count: Any) -> Any:
        if count > 3:
            raise ValueError("too many")
        return count

    lookup = defined(monkeypatch, it, count="int64")
    assert lookup(3) == 3
    with pytest.raises(RuntimeError, match=r"of_a_test\.it failed"):
        lookup(4)


def test_where_nothing_can_be_written_kernels_are_kept_for_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache_folder.VARIABLE, raising=False)
    found = cache_folder.folder.__wrapped__
    assert found() == Path(cache_folder.__file__).parent / "__pycache__"
    monkeypatch.setattr(cache_folder, "_writable", lambda folder: False)
    monkeypatch.setattr(cache_folder, "mkdtemp", lambda prefix: str(tmp_path))
    assert found() == tmp_path
    # a folder that the user named stays
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "elsewhere"))
    assert found() == tmp_path / "elsewhere"
    file = tmp_path / "file"
    file.touch()
    monkeypatch.undo()
    assert not cache_folder._writable(file / "below")
    assert cache_folder._writable(tmp_path / "new")
