"""Where Numba keeps what it compiled: `NUMBA_CACHE_DIR`, else beside the sources, else in the user's cache.

It refuses to compile where none of these can be written, as in a container whose file system is read only and whose user has no
home. Then a folder of this process serves.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile, mkdtemp

_VARIABLE = "NUMBA_CACHE_DIR"


def provided() -> None:
    """See that there is a folder. Numba reads its name when it is first imported."""
    if os.environ.get(_VARIABLE) or _writable(Path(__file__).parent / "__pycache__"):
        return
    caches = Path("~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    with suppress(OSError, RuntimeError):
        # no home
        if _writable(caches.expanduser() / "numba"):
            return
    with suppress(OSError):
        # of a name that nobody can foresee: what lies there is run
        os.environ[_VARIABLE] = mkdtemp(prefix="paceline-kernels-")
        atexit.register(rmtree, os.environ[_VARIABLE], ignore_errors=True)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
