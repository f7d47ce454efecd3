"""Where kernels are kept: in the folder that `PACELINE_KERNELS` names, else beside the sources or in the user's cache.

They are read from any of these folders, and written to the first writable one. So a container image whose sources include
compiled kernels works for any user.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from paceline.machine import user_cache

VARIABLE = "PACELINE_KERNELS"


@cache
def folders() -> tuple[Path, ...]:
    """The folders, in order; they need not exist. If `PACELINE_KERNELS` is set, only the one it names."""
    named = os.environ.get(VARIABLE)
    if named:
        return (Path(named).absolute(),)
    found = [Path(__file__).parent / "__pycache__"]
    own = user_cache()
    return (*found, own / "kernels") if own is not None else tuple(found)
