"""Compiled: kernels as machine code, compiled once per machine and read from disk afterwards, without the compiler.

Numba and its compilation take a hundred megabytes and most of the startup time; the code itself takes one megabyte. So kernels
are compiled in separate processes (`compiler`), several in parallel, and loaded from disk by LLVM's linker, which comes with
llvmlite and needs nothing else. No module that is imported here imports Numba.
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
from typing import Any

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
"""A digest of the source files of kernels, and of the files whose constants are compiled into them."""

_MACHINE = repr((sys.platform, llvm.get_process_triple(), *TARGET, MATRIX_UNIT))
"""What code is compiled for: the processor, and properties that the operating system determines."""
_DIGEST_BYTES = 32


class Kernel:
    """A compiled function of integers at `address`: void(int64, ...), in C's calling convention.

    name: its module below this package, and its function there. of: if that function is a factory that makes the definition, its
    argument. words: how many integers it takes.
    """

    def __init__(self, name: str, of: str = "", words: int = 2) -> None:
        self.name, self.of, self.words = name, of, words
        self._address = 0

    @property
    def symbol(self) -> str:
        return f"paceline.{self.name}{'.' if self.of else ''}{self.of}"

    @property
    def description(self) -> dict[str, Any]:
        """The message for a compiler process: the arguments to construct this kernel again."""
        return {"name": self.name, "of": self.of, "words": self.words}

    @property
    def address(self) -> int:
        """The function's address; compiles the kernel if this machine has no code of it. Raises CompileError if that fails."""
        if not self._address:
            ready([self])
        return self._address

    @cached_property
    def function(self) -> Any:
        """The function for calls from Python. It releases the GIL, and several threads may call it."""
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * self.words)(self.address)


_loading = RLock()


def _renew() -> None:
    """Replace the lock in a forked process, which lacks the thread that may have held it."""
    global _loading
    _loading = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def ready(kernels: Iterable[Kernel]) -> None:
    """Load kernels from disk; compile missing ones, several in parallel. Order them slowest first.

    Raises CompileError if one cannot be compiled or loaded.
    """
    with _loading:
        lacking = [kernel for kernel in dict.fromkeys(kernels) if not kernel._address]
        found = {kernel: _read(kernel, folders()) for kernel in lacking}
        if not all(found.values()):
            getLogger("paceline").info("compiling kernels for this processor; later starts find them on disk")
            found |= _compiled([kernel for kernel, code in found.items() if not code])
        for kernel, code in found.items():
            kernel._address = _linker().address(kernel.symbol, code)


_failed = set[Kernel]()


def available(*kernels: Kernel) -> bool:
    """Whether optional kernels are available, loading them if needed. One that failed is not tried again, in no step."""
    lacking = [kernel for kernel in kernels if not kernel._address]
    if not lacking:
        return True
    if not _failed.isdisjoint(lacking):
        return False
    try:
        ready(lacking)
    except CompileError:
        # beside one that fails, others may have been compiled, and are on disk
        _failed.update(kernel for kernel in lacking if not _read(kernel, folders()))
        return False
    return True


def _compiled(kernels: list[Kernel]) -> dict[Kernel, bytes]:
    # neither the user's Numba settings nor a Numba configuration in the current folder may affect kernels
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment |= NUMBA_VARIABLES
    try:
        with raised(), TemporaryDirectory(prefix="paceline-kernels-", ignore_cleanup_errors=True) as own:
            found, kept = {}, True
            try:
                Compilers(SOURCES, Path(own), environment).compile([(kernel.symbol, kernel.description) for kernel in kernels])
            finally:
                # after an interrupt, keep the kernels compiled so far
                for kernel in kernels:
                    found[kernel] = code = _read(kernel, [Path(own)])
                    kept = (not code or _keep(kernel, code)) and kept
    except CompileError:
        raise
    # no temporary folder, process or thread can be created
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
    """A kernel's file name: it differs between machines and versions; after an edit of the sources the file is overwritten."""
    return f"{kernel.symbol}.{sha256(repr((_MACHINE, __version__, _compiler())).encode()).hexdigest()[:12]}.o"


@cache
def _compiler() -> tuple[str, ...]:
    """Versions of the compiler's packages."""
    try:
        return version("numba"), version("llvmlite")
    except PackageNotFoundError as error:
        raise CompileError(f"kernels need {error.name}, which is not installed") from None


def _stamp(kernel: Kernel, code: bytes) -> bytes:
    """A checksum of code, sources, machine and compiler, stored before the code."""
    return sha256(repr((SOURCES, _MACHINE, _compiler(), kernel.description)).encode() + code).digest()


def _read(kernel: Kernel, places: Iterable[Path]) -> bytes:
    """A kernel's code from the first folder with a valid file of these sources; empty if there is none."""
    for folder in places:
        with suppress(OSError):
            kept = (folder / _name(kernel)).read_bytes()
            stamp, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
            if code and stamp == _stamp(kernel, code):
                return code
    return b""


def _keep(kernel: Kernel, code: bytes) -> bool:
    """Write a kernel's code to the first folder that accepts it; returns whether one did."""
    for folder in folders():
        with suppress(OSError):
            write(kernel, code, folder)
            return True
    return False


def write(kernel: Kernel, code: bytes, folder: Path) -> None:
    """Write a kernel's code to a folder atomically. Raises OSError."""
    put_whole(folder / _name(kernel), _stamp(kernel, code) + code, 0o644)


class _Linker:
    """LLVM's JIT linker, which never unloads code."""

    def __init__(self) -> None:
        try:
            llvm.check_jit_execution()
        except OSError as error:
            raise CompileError(f"this system lets no process run code that it has written: {error.strerror or error}") from None
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._machine)

    def address(self, symbol: str, code: bytes) -> int:
        try:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()
        except RuntimeError as error:
            raise CompileError(f"the kernel {symbol} cannot be linked: {error}") from error
        return self._engine.get_function_address(symbol)


_linker = cache(_Linker)
