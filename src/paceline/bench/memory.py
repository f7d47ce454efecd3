"""Memory: what a process holds that does nothing but answer, as a user's would.

A benchmark's own process grows models, holds every draft at once and measures; its peak says little.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence as Many

from paceline.bench.contest import DecoderFailed
from paceline.child import command, module_paths

_ALONE = "import runpy, sys; sys.modules['scipy'] = None; runpy.run_module('paceline', run_name='__main__', alter_sys=True)"
"""The command line without SciPy, which comes with peers and is no part of Paceline: Numba imports it where it is, 17 MB."""


def peak_of_answering(prompt: str, options: Many[str], threads: int) -> int | None:
    """The peak resident bytes of `paceline generate` with this prompt and these options; None where the system does not tell.

    Raises DecoderFailed where it fails.
    """
    # a prompt may be longer than an argument can be, and hold what none can
    call = command("-c", _ALONE, "generate", "--prompt=-", *options, "--json")
    environment = {**os.environ, **module_paths(), "OMP_NUM_THREADS": str(threads)}
    try:
        answer = subprocess.run(call, capture_output=True, encoding="utf-8", env=environment, input=prompt, check=False)
    except (OSError, ValueError) as error:
        raise DecoderFailed(str(error)) from error
    if answer.returncode:
        raise DecoderFailed((answer.stderr.strip().splitlines() or ["it says nothing"])[-1])
    return json.loads(answer.stdout)["memory"]["peak_resident_bytes"]
