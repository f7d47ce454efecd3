"""Where kernels are kept: in the folder that `PACELINE_KERNELS` names, else beside the sources or in the user's cache.

They are read from wherever they lie, and written to the first of these folders that takes them. So an image whose sources come
with kernels needs nothing more, whoever it is run by.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from paceline.machine import user_cache

VARIABLE = "PACELINE_KERNELS"


@cache
def folders() -> tuple[Path, ...]:
    """The folders, in order; they need not be there. A named one is the only one."""
    named = os.environ.get(VARIABLE)
    if named:
        return (Path(named).absolute(),)
    found = [Path(__file__).parent / "__pycache__"]
    own = user_cache()
    return (*found, own / "kernels") if own is not None else tuple(found)
