"""Child: a process of Python that has the modules of this one, and none of those that lie in the folder it is started in."""

from __future__ import annotations

import os
import sys


def command(*arguments: str) -> list[str]:
    """What starts one."""
    return [sys.executable, "-P", *arguments]


def module_paths() -> dict[str, str]:
    """For its environment: where this process has its modules from."""
    # the folder that this was started in, an empty path, comes last: anybody's file may be called there as a module is
    paths = sorted((path for path in sys.path if isinstance(path, str)), key=lambda path: not path)
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))}
