"""Compiled: kernels as machine code, made once per machine and read from disk afterwards, without the compiler.

Numba and what it makes of a kernel take a hundred megabytes and the better part of a start; the code itself takes one. So kernels
are compiled in processes of their own (`compiler`), several at a time, and what these leave on disk is run: LLVM's linker, which
llvmlite brings, needs nothing else. No module that is imported here imports Numba.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from logging import getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any, ClassVar

import llvmlite.binding as llvm

from paceline.interrupts import raised
from paceline.kernels.cache_folder import folders
from paceline.kernels.compilers import CompileError, Compilers
from paceline.kernels.native.vectors import MATRIX_UNIT, NUMBA_VARIABLES, TARGET
from paceline.version import __version__
from paceline.whole_file import put_whole

_HERE = Path(__file__).parent
_FILES = (
    *(file for name in ("native", "choices", "ngrams", "suffixes", "successors") for file in sorted((_HERE / name).glob("*.py"))),
    *(_HERE / f"{name}.py" for name in ("compiled", "compiler", "compiled_call")),
    *(_HERE.parent / f"{name}.py" for name in ("noise", "stopping")),
)
SOURCES = sha256(b"".join(file.read_bytes() for file in _FILES)).hexdigest()[:16]
"""A digest of the files that kernels are put together from, and of those whose constants they compile in."""

_MACHINE = repr((sys.platform, llvm.get_process_triple(), *TARGET, MATRIX_UNIT))
"""What code is made for: the processor, and what the system decides about and not the processor."""
_DIGEST_BYTES = 32


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
    def description(self) -> dict[str, Any]:
        """What a compiler process is sent: the arguments to construct this kernel again."""
        return {"name": self.name, "of": self.of, "words": self.words}

    @property
    def address(self) -> int:
        """Compiles the kernel where that was not done on this machine. Raises CompileError where it cannot be done."""
        if not self._address:
            ready([self])
        return self._address

    @cached_property
    def function(self) -> Any:
        """What Python calls. Other threads run while it does, and may call it too."""
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * self.words)(self.address)


_loading = RLock()


def _renew() -> None:
    """A forked process has not the thread that may have held the lock."""
    global _loading
    _loading = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def ready(kernels: Iterable[Kernel]) -> None:
    """Have kernels at hand: read from disk, and compiled, several at a time, where they are not there. The first take longest.

    Raises CompileError where one cannot be had.
    """
    with _loading:
        lacking = [kernel for kernel in dict.fromkeys(kernels) if not kernel._address]
        found = {kernel: _read(kernel, folders()) for kernel in lacking}
        if not all(found.values()):
            getLogger("paceline").info("compiling kernels for this processor; later starts find them on disk")
            found |= _compiled([kernel for kernel, code in found.items() if not code])
        for kernel, code in found.items():
            kernel._address = _Linker.shared().address(kernel.symbol, code)


@cache
def available(*kernels: Kernel) -> bool:
    """Whether kernels can be had that can be done without. Where they could not, nobody tries again: a step is no time to."""
    try:
        ready(kernels)
    except CompileError:
        return False
    return True


def _compiled(kernels: list[Kernel]) -> dict[Kernel, bytes]:
    # Numba's other settings, and whatever lies in the folder that this was started in, are nobody's wish for kernels
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment |= NUMBA_VARIABLES
    try:
        with raised(), TemporaryDirectory(prefix="paceline-kernels-", ignore_cleanup_errors=True) as own:
            found, kept = {}, True
            try:
                Compilers(SOURCES, Path(own), environment).compile([(kernel.symbol, kernel.description) for kernel in kernels])
            finally:
                # whoever is interrupted keeps what is there by then
                for kernel in kernels:
                    found[kernel] = code = _read(kernel, [Path(own)])
                    kept = (not code or _keep(kernel, code)) and kept
    except CompileError:
        raise
    # no folder, no process, no thread
    except (OSError, RuntimeError) as error:
        raise CompileError(f"kernels cannot be compiled: {error}") from error
    for kernel, code in found.items():
        if not code:
            raise CompileError(f"the kernel {kernel.symbol} was compiled and cannot be read")
    if not kept:
        places = " or ".join(f"'{folder}'" for folder in folders())
        getLogger("paceline").warning("kernels cannot be kept in %s: every start will compile them anew", places)
    return found


def _name(kernel: Kernel) -> str:
    """Of its file: other machines and other versions have files of their own, and what is edited is written over."""
    return f"{kernel.symbol}.{sha256(repr((_MACHINE, __version__, _compiler())).encode()).hexdigest()[:12]}.o"


@cache
def _compiler() -> tuple[str, ...]:
    """What compiles, by version."""
    try:
        return version("numba"), version("llvmlite")
    except PackageNotFoundError as error:
        raise CompileError(f"kernels need {error.name}, which is not installed") from None


def _stamp(kernel: Kernel, code: bytes) -> bytes:
    """What says that code is whole, and of these sources."""
    return sha256(repr((SOURCES, _MACHINE, _compiler(), kernel.description)).encode() + code).digest()


def _read(kernel: Kernel, places: Iterable[Path]) -> bytes:
    """A kernel's code from the first of some folders in which it is there, whole, and of these sources; nothing from none."""
    for folder in places:
        with suppress(OSError):
            kept = (folder / _name(kernel)).read_bytes()
            stamp, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
            if code and stamp == _stamp(kernel, code):
                return code
    return b""


def _keep(kernel: Kernel, code: bytes) -> bool:
    """Keep a kernel's code in the first folder that takes it; whether one does."""
    for folder in folders():
        with suppress(OSError):
            write(kernel, code, folder)
            return True
    return False


def write(kernel: Kernel, code: bytes, folder: Path) -> None:
    """Put a kernel's code into a folder: whole, or not at all. Raises OSError."""
    put_whole(folder / _name(kernel), _stamp(kernel, code) + code, 0o644)


class _Linker:
    """LLVM's, which never lets go of code again."""

    _one: ClassVar[_Linker | None] = None

    def __init__(self) -> None:
        try:
            llvm.check_jit_execution()
        except OSError as error:
            raise CompileError(f"this system lets no process run code that it has written: {error.strerror or error}") from None
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
        try:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()
        except RuntimeError as error:
            raise CompileError(f"the kernel {symbol} cannot be linked: {error}") from error
        return self._engine.get_function_address(symbol)
