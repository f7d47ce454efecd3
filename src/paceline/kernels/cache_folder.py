"""Where kernels are kept: in the folder that `PACELINE_KERNELS` names, else beside the sources, else in the user's cache.

Where none of these can be written, as in a container whose file system is read only and whose user has no home, they are kept in
a folder of this process.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile, mkdtemp

VARIABLE = "PACELINE_KERNELS"


@cache
def folder() -> Path:
    """The folder, which is there. Raises OSError where there is none to be had."""
    named = os.environ.get(VARIABLE)
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
        return Path(named)
    beside = Path(__file__).parent / "__pycache__"
    if _writable(beside):
        return beside
    caches = Path("~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    with suppress(RuntimeError):
        # no home
        own = caches.expanduser() / "paceline" / "kernels"
        if _writable(own):
            return own
    # of a name that nobody can foresee: what lies there is run
    kept = Path(mkdtemp(prefix="paceline-kernels-"))
    atexit.register(rmtree, kept, ignore_errors=True)
    return kept


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
