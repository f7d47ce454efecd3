"""Kernels on disk: compiled in separate processes, read only if intact, and run without the compiler."""

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
from paceline.kernels import cache_folder, compiled, compiler, compilers
from paceline.kernels.compiled import Kernel, ready
from paceline.kernels.compiled_call import CompiledFunction
from paceline.kernels.compilers import CompileError
from paceline.kernels.native.entries import IDLE, LEAD, WORK
from paceline.kernels.ngrams.continuations import KERNELS
from paceline.machine import most_threads

SAID = "compiling kernels for this processor"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for kernels, used during the test."""
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path))
    cache_folder.folders.cache_clear()
    yield tmp_path
    cache_folder.folders.cache_clear()


def defined(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], **arguments: str) -> CompiledFunction:
    """A function compiled in this process."""
    module = ModuleType("paceline.kernels.of_a_test")
    module.it = function  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = CompiledFunction("of_a_test.it", **arguments)
    compiled.write(made, compiler.object_code(made), cache_folder.folders()[0])
    return made


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
    assert len([*kept.iterdir()]) == 2, "no other file is left"


def test_code_that_another_installation_writes_meanwhile_is_not_run(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = compiled.write

    def both_write(kernel: Kernel, code: bytes, folder: Path) -> None:
        """The other installation has other sources, and writes slightly later."""
        write(kernel, code, folder)
        with monkeypatch.context() as other:
            other.setattr(compiled, "SOURCES", "others")
            write(kernel, b"other code", folder)

    monkeypatch.setattr(compiled, "write", both_write)
    monkeypatch.setattr(IDLE, "_address", 0)
    ready([IDLE])
    assert IDLE.address


def test_a_compiler_makes_no_code_for_itself() -> None:
    ran = run(
        "from numba.core.codegen import JitEngine\n"
        "from paceline.kernels.compiler import object_code, run_nothing\n"
        "from paceline.kernels.choices.tree_walk import WALK_TREES\n"
        "made = []\n"
        "for name in ('finalize_object', 'get_function_address'):\n"
        "    setattr(JitEngine, name, lambda *given: made.append(given))\n"
        "run_nothing()\n"
        "print(len(object_code(WALK_TREES)) > 1000, made)"
    )
    assert (ran.returncode, ran.stdout.split()) == (0, ["True", "[]"]), ran.stderr


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "of other sources"])
def test_a_damaged_or_outdated_kernel_file_is_recompiled(kept: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not compiled._read(again, [kept])
    monkeypatch.undo()
    monkeypatch.setenv(cache_folder.VARIABLE, str(kept))
    if damage == "of other sources":
        file.unlink()
    ran = run("from paceline.kernels.native.entries import IDLE; print(IDLE.address > 0)")
    assert ran.stdout.strip() == "True", ran.stderr
    assert file.read_bytes() == whole, "equal sources give equal code"


def test_several_are_compiled_side_by_side_and_each_once(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []
    work_off = compilers.Compilers._work_off
    monkeypatch.setattr(compilers.Compilers, "_work_off", lambda self, waiting: (started.append(1), work_off(self, waiting)))
    kernels = [Kernel(kernel.name) for kernel in (IDLE, WORK, LEAD)]
    with caplog.at_level(logging.INFO, "paceline"):
        ready([*kernels, *kernels])
        ready(kernels)
    assert all(kernel.address for kernel in kernels)
    assert len(started) == min(most_threads(), 3, compilers._MOST)
    assert len(caplog.messages) == 1


def test_a_kernel_that_cannot_be_compiled_says_why(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError, match=r"^the kernel paceline\.native\.pool\.nap cannot be compiled: AttributeError: "):
        ready([Kernel("native.pool.nap")])
    monkeypatch.setattr(compiled, "SOURCES", "of an older version")
    with pytest.raises(CompileError, match="its sources have changed since this was started"):
        ready([Kernel(IDLE.name)])


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("/nothing", r"'/nothing' cannot be run: No such file"),
        (None, "'None' cannot be run: it is not known where Python is"),
        ("/bin/false", "its compiler ended"),
        ("/bin/cat", "kernels cannot be compiled"),
    ],
)
def test_a_missing_or_failing_python_for_the_compiler_is_named_in_the_error(
    kept: Path, monkeypatch: pytest.MonkeyPatch, python: str | None, why: str
) -> None:
    for _ in range(3):
        # whether it ends before or after reading its input
        monkeypatch.setattr(sys, "executable", python)
        with pytest.raises(CompileError, match=why):
            ready([Kernel(IDLE.name)])


def test_an_executable_that_is_no_python_is_not_waited_for(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf, talks = kept / "deaf", kept / "talks"
    deaf.write_text("#!/bin/sh\nexec sleep 600\n")
    talks.write_text("#!/bin/sh\necho Welcome\nexec sleep 600\n")
    monkeypatch.setattr(compilers, "_START_S", 0.2)
    for program, why in ((deaf, "its compiler ended"), (talks, "kernels cannot be compiled: Welcome")):
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        with pytest.raises(CompileError, match=why):
            ready([Kernel(IDLE.name)])


def test_the_current_folder_and_the_settings_of_numba_have_no_say(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "queue", "numba"):
        (here / f"{name}.py").write_text("raise SystemExit('somebody else')\n")
    (here / ".numba_config.yaml").write_text("disable_jit: 1\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    kernel = Kernel(IDLE.name)
    ready([kernel])
    assert kernel.address


def test_waiting_compilations_are_dropped_when_one_fails(kept: Path) -> None:
    waited = compilers.Compilers(compiled.SOURCES, kept, dict(os.environ))
    with pytest.raises(CompileError, match="kernel nap cannot be compiled"):
        waited.compile(
            [("nap", Kernel("native.pool.nap").description)] * 2 + [("step", Kernel("native.decoder.step").description)] * 20
        )
    assert all(process.poll() is not None for process in waited._processes)
    assert not [*kept.glob("*step*")]


def test_every_command_shows_log_messages_of_level_info(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("paceline")
    monkeypatch.setattr(log, "level", logging.NOTSET)
    assert CliRunner().invoke(app, ["models"]).exit_code == 0
    assert log.isEnabledFor(logging.INFO)
    assert log.handlers


def test_a_run_imports_no_compiler() -> None:
    """The compiler takes seventy megabytes, and a third of the start time."""
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
    function = defined(monkeypatch, it, **kinds)
    table, cube, out = np.array([[1, 2, 3], [4, 5, 6]], np.int32), np.arange(24.0).reshape(2, 3, 4), np.zeros(2)
    assert function(7, table, 0.25, cube, out) == 7 + 40 + 300 + 2000 + 240000
    assert out.tolist() == [0.25, 23.0]
    call = function.call(table=table, cube=cube, out=out, fraction=0.5)
    call.record.whole = -7
    assert call() == -7 + 40 + 300 + 2000 + 240000
    call.give(table=np.full((3, 1), 2, np.int32))
    assert call() == -7 + 20 + 100 + 3000 + 240000, "the other arguments are unchanged"


@pytest.mark.parametrize("table", [np.zeros((2, 2)), np.zeros(2, np.int32), np.zeros((2, 4), np.int32)[:, ::2]])
def test_an_array_of_another_kind_is_refused(table: np.ndarray) -> None:
    (rehash,) = (kernel for kernel in KERNELS if isinstance(kernel, CompiledFunction) and kernel.name.endswith("rehash"))
    with pytest.raises(TypeError, match=r"ngrams\.index_kernel\.rehash takes for 'tables' int32\[:,:\] in rows, not .* of shape"):
        rehash.call(tables=table)


def test_an_exception_in_compiled_code_raises_runtime_error(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def it(count: Any) -> Any:
        if count > 3:
            raise ValueError("too many")
        return count

    function = defined(monkeypatch, it, count="int64")
    assert function(3) == 3
    with pytest.raises(RuntimeError, match=r"of_a_test\.it failed"):
        function(4)


def test_kernels_are_read_wherever_they_lie_and_written_where_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No folder can be created below a file, whatever the user's permissions."""
    (tmp_path / "file").touch()
    shut, full, free = tmp_path / "file" / "below", tmp_path / "full", tmp_path / "free" / "below"
    monkeypatch.setattr(compiled, "folders", lambda: (shut, free))
    with caplog.at_level(logging.INFO, "paceline"):
        ready([Kernel(IDLE.name)])
        free.rename(full)
        monkeypatch.setattr(compiled, "folders", lambda: (shut, free, full))
        ready([Kernel(IDLE.name)])
    assert len(caplog.messages) == 1, "the second time it was read from disk"
    assert not free.exists()
    monkeypatch.setattr(compiled, "folders", lambda: (shut,))
    caplog.clear()
    with caplog.at_level(logging.INFO, "paceline"):
        kernel = Kernel(IDLE.name)
        ready([kernel])
    assert kernel.address, "it runs all the same"
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "every start will compile them anew" in caplog.messages[1]


def test_the_folders_are_the_one_that_is_named_or_beside_the_sources_and_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cache_folder.folders.__wrapped__
    monkeypatch.delenv(cache_folder.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert found() == (Path(cache_folder.__file__).parent / "__pycache__", tmp_path / "paceline" / "kernels")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache_folder.VARIABLE, "kernels")
    assert found() == (tmp_path / "kernels",)


def test_a_model_whose_kernels_cannot_be_compiled_does_not_fall_back_to_another_backend(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other backend would hold the model in another precision, and generate other texts."""
    ran = run(
        "import sys\nfrom paceline import LLM\nsys.executable = '/nothing'\n"
        "try:\n    LLM(draft='none')\nexcept Exception as error:\n    print(type(error).__name__, error)"
    )
    assert ran.stdout.startswith("CompileError kernels cannot be compiled: '/nothing' cannot be run"), ran.stderr


def test_kernels_that_cannot_be_had_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refused(kernels: object) -> None:
        asked.append(kernels)
        raise CompileError("this system lets no process run code that it has written")

    monkeypatch.setattr(compiled, "ready", refused)
    kernel = Kernel("native.of.nobody")
    assert [compiled.available(kernel) for _ in range(3)] == [False, False, False]
    assert not compiled.available(kernel, Kernel("native.of.somebody")), "nor in another set"
    assert len(asked) == 1
