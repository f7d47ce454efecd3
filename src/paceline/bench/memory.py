"""Memory: peak memory of a process that only answers, like a user's.

The benchmark's own process also grows models and holds every draft at once, so its peak is not representative.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence as Many

from paceline.bench.contest import DecoderFailed
from paceline.child import command, module_paths

_ALONE = "import runpy, sys; sys.modules['scipy'] = None; runpy.run_module('paceline', run_name='__main__', alter_sys=True)"
"""Runs the command line without SciPy, which peers install and Paceline does not need: Numba imports it if present (17 MB)."""


def peak_of_answering(prompt: str, options: Many[str], threads: int) -> int | None:
    """The peak resident bytes of `paceline generate` with this prompt and these options; None if the system does not report it.

    Raises DecoderFailed if the process fails.
    """
    # by standard input: a prompt may be too long for an argument, or have characters that no argument can have
    call = command("-c", _ALONE, "generate", "--prompt=-", *options, "--json")
    environment = {**os.environ, **module_paths(), "OMP_NUM_THREADS": str(threads)}
    try:
        answer = subprocess.run(call, capture_output=True, encoding="utf-8", env=environment, input=prompt, check=False)
    except (OSError, ValueError) as error:
        raise DecoderFailed(str(error)) from error
    if answer.returncode:
        raise DecoderFailed((answer.stderr.strip().splitlines() or ["it says nothing"])[-1])
    return json.loads(answer.stdout)["memory"]["peak_resident_bytes"]
