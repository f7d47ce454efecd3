"""Compiled: kernels as machine code, made once per machine and read from disk afterwards, without the compiler.

Numba and what it makes of a kernel take a hundred megabytes and the better part of a start; the code itself takes one. So kernels
are compiled in processes of their own (`compiler`), several at a time, and what these leave on disk is run: LLVM's linker, which
llvmlite brings, needs nothing else. No module that is imported here imports Numba.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from logging import getLogger
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import NamedTemporaryFile, TemporaryFile
from threading import RLock
from typing import Any, ClassVar

import llvmlite.binding as llvm

from paceline.kernels.cache_folder import VARIABLE, folder
from paceline.kernels.native.vectors import MATRIX_UNIT, TARGET

_HERE = Path(__file__).parent
_FILES = (
    *(file for name in ("native", "ngrams", "suffixes", "successors") for file in sorted((_HERE / name).glob("*.py"))),
    *(_HERE / f"{name}.py" for name in ("compiled", "compiler", "lookups")),
    *(_HERE.parent / f"{name}.py" for name in ("noise", "stopping")),
)
SOURCES = sha256(b"".join(file.read_bytes() for file in _FILES)).hexdigest()[:16]
"""A digest of the files that kernels are put together from, and of those whose constants they compile in."""

_MACHINE = repr((sys.platform, *TARGET, MATRIX_UNIT))
"""What code is made for: the processor, and what the system decides about and not the processor."""
_DIGEST_BYTES = 32
_MOST_COMPILERS = 4
DONE = "done"
"""What a compiler says of a kernel that it has compiled and kept; anything else is why it could not."""


class Kernel:
    """A compiled function of whole numbers, `address`: void(int64, ...), in C's calling convention.

    name: the module of its definition below this package, and the function in it. of: what a definition is made for, where it is
    made by a function of a name. words: how many numbers it takes.
    """

    def __init__(self, name: str, of: str = "", words: int = 2) -> None:
        self.name, self.of, self.words = name, of, words
        self._address = 0

    @property
    def symbol(self) -> str:
        return f"paceline.{self.name}{'.' if self.of else ''}{self.of}"

    @property
    def told(self) -> dict[str, Any]:
        """What a compiler has to know."""
        return {"name": self.name, "of": self.of, "words": self.words}

    @property
    def address(self) -> int:
        """Compiles the kernel where that was not done on this machine. Raises CompileError where it cannot be done."""
        if not self._address:
            ready([self])
        return self._address


class CompileError(RuntimeError):
    """A kernel could not be compiled."""


_loading = RLock()


def ready(kernels: Iterable[Kernel]) -> None:
    """Have kernels at hand: read from disk, and compiled, several at a time, where they are not there. The first take longest."""
    with _loading:
        lacking = [kernel for kernel in dict.fromkeys(kernels) if not kernel._address]
        anew = [kernel for kernel in lacking if not _loaded(kernel)]
        if anew:
            getLogger("paceline").info("compiling kernels for this processor; later starts find them on disk")
            _compiled(anew)
            for kernel in anew:
                if not _loaded(kernel):
                    raise CompileError(f"the kernel {kernel.symbol} was compiled and cannot be read from '{_file(kernel)}'")


def _file(kernel: Kernel) -> Path:
    return folder() / f"{kernel.symbol}.{sha256(_MACHINE.encode()).hexdigest()[:12]}.o"


def _stamp(kernel: Kernel, code: bytes) -> bytes:
    """What says that code is whole, and of these sources."""
    compiler = (version("numba"), version("llvmlite"))
    return sha256(repr((SOURCES, _MACHINE, compiler, kernel.told)).encode() + code).digest()


def _loaded(kernel: Kernel) -> bool:
    """Read a kernel from disk; whether it was there, whole, and of these sources."""
    try:
        kept = _file(kernel).read_bytes()
    except OSError:
        return False
    stamp, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if stamp != _stamp(kernel, code):
        return False
    kernel._address = _Linker.shared().address(kernel.symbol, code)
    return True


def write(kernel: Kernel, code: bytes) -> None:
    """Keep a kernel's code: whole, or not at all."""
    with NamedTemporaryFile(dir=folder(), prefix=f"{kernel.symbol}.", delete=False) as part:
        try:
            part.write(_stamp(kernel, code) + code)
            part.close()
            os.chmod(part.name, 0o644)
            os.replace(part.name, _file(kernel))
        except BaseException:
            with suppress(OSError):
                os.unlink(part.name)
            raise


class _Linker:
    """LLVM's, which never lets go of code again."""

    _one: ClassVar[_Linker | None] = None

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._machine)

    @classmethod
    def shared(cls) -> _Linker:
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def address(self, symbol: str, code: bytes) -> int:
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        return self._engine.get_function_address(symbol)


def _compiled(kernels: list[Kernel]) -> None:
    """Compile in processes of their own, which take one kernel after the other. Raises CompileError."""
    waiting: SimpleQueue[Kernel] = SimpleQueue()
    for kernel in kernels:
        waiting.put(kernel)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(cores, _MOST_COMPILERS, len(kernels))
    with ThreadPoolExecutor(count) as compilers:
        for done in [compilers.submit(_work_off, waiting) for _ in range(count)]:
            done.result()


def _work_off(waiting: SimpleQueue[Kernel]) -> None:
    """One compiler: give it kernels until none is waiting."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment = os.environ | {"PYTHONPATH": paths, VARIABLE: str(folder())}
    command = [sys.executable, "-m", "paceline.kernels.compiler"]
    with TemporaryFile("w+") as said:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=environment, text=True
            )
        except OSError as error:
            raise CompileError(f"kernels cannot be compiled: '{sys.executable}' cannot be run: {error.strerror}") from None
        with process:
            assert process.stdin
            assert process.stdout
            with suppress(Empty):
                while True:
                    kernel = waiting.get_nowait()
                    with suppress(BrokenPipeError):
                        print(json.dumps(kernel.told), file=process.stdin, flush=True)
                    answer = process.stdout.readline()
                    if answer.strip() != DONE:
                        said.seek(0)
                        why = answer.strip() or (said.read().strip().splitlines() or ["its compiler ended"])[-1]
                        raise CompileError(f"the kernel {kernel.symbol} cannot be compiled: {why}")
            process.stdin.close()
