"""Compilers: separate processes that compile kernels (`compiler`), several in parallel.

Each gets one kernel after the other, as a line of JSON, and answers with a line. All are ended when `compile` returns or raises.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence as Many
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

from paceline.child import command, module_paths
from paceline.errors import PacelineError
from paceline.machine import most_threads

READY, DONE = "ready", "done"
"""A compiler's answers after starting, and after compiling and writing a kernel; any other answer is an error message."""
_MOST = 4
_START_S = 120.0
"""Seconds that one may take to start: if `sys.executable` is not a Python, it might never answer."""


class CompileError(PacelineError, RuntimeError):
    """A kernel could not be compiled on this machine."""


class Compilers:
    """sources: digest of the kernels' sources. own: an empty folder, used by these processes alone, where they run and write
    their results. environment: of the processes."""

    def __init__(self, sources: str, own: Path, environment: dict[str, str]) -> None:
        self._begun, self._own = json.dumps({"sources": sources, "own": str(own)}), own
        self._environment = environment | module_paths()
        self._processes: list[subprocess.Popen[str]] = []

    def compile(self, kernels: Many[tuple[str, dict[str, Any]]]) -> None:
        """kernels: symbol and description of each (`Kernel.description`). Raises CompileError for the first that fails."""
        waiting: SimpleQueue[tuple[str, dict[str, Any]]] = SimpleQueue()
        for kernel in kernels:
            waiting.put(kernel)
        count = min(most_threads(), _MOST, len(kernels))
        with ThreadPoolExecutor(count) as threads:
            try:
                for done in as_completed([threads.submit(self._work_off, waiting) for _ in range(count)]):
                    done.result()
            except BaseException:
                # after an interrupt or a failure, do not wait for the rest
                with suppress(Empty):
                    while True:
                        waiting.get_nowait()
                for process in self._processes:
                    process.kill()
                raise

    def _work_off(self, waiting: SimpleQueue[tuple[str, dict[str, Any]]]) -> None:
        """Start one compiler and give it kernels until none is waiting."""
        with TemporaryFile("w+", errors="replace", dir=self._own) as said:
            try:
                process = subprocess.Popen(
                    command("-m", "paceline.kernels.compiler"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    env=self._environment,
                    cwd=self._own,
                    text=True,
                    errors="replace",
                    # a terminal interrupts a whole group: an end of theirs would look like a kernel that cannot be compiled
                    process_group=0,
                )
            except (OSError, TypeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not known where Python is"
                raise CompileError(f"kernels cannot be compiled: '{sys.executable}' cannot be run: {why}") from None
            self._processes.append(process)
            starting = Timer(_START_S, process.kill)
            starting.daemon = True
            try:
                starting.start()
                _answered(process, self._begun, READY, said, "kernels cannot be compiled")
                starting.cancel()
                with suppress(Empty):
                    while True:
                        symbol, order = waiting.get_nowait()
                        _answered(process, json.dumps(order), DONE, said, f"the kernel {symbol} cannot be compiled")
            except BaseException:
                # another program may not exit when its input is closed
                process.kill()
                raise
            finally:
                starting.cancel()
                for pipe in (process.stdin, process.stdout):
                    # closing may fail to flush unread input, which does not matter
                    with suppress(OSError):
                        pipe.close()  # pyright: ignore[reportOptionalMemberAccess]
                process.wait()


def _answered(process: subprocess.Popen[str], line: str, expected: str, said: Any, wrong: str) -> None:
    """Send a compiler a line and wait for its answer. said: its stderr. Raises CompileError for an answer not `expected`."""
    assert process.stdin
    assert process.stdout
    with suppress(OSError):
        print(line, file=process.stdin, flush=True)
    answer = process.stdout.readline().strip()
    if answer != expected:
        said.seek(0)
        why = answer or (said.read().strip().splitlines() or ["its compiler ended"])[-1]
        raise CompileError(f"{wrong}: {why}")
