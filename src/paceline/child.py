"""Child: a Python process with this one's module search path, to which the folder it is started in is not added."""

from __future__ import annotations

import os
import sys


def command(*arguments: str) -> list[str]:
    """The command that starts a child."""
    return [sys.executable, "-P", *arguments]


def module_paths() -> dict[str, str]:
    """Environment variables for a child: the module search path of this process."""
    # an empty path, the current folder, comes last: any file there may have the name of a module
    paths = sorted((path for path in sys.path if isinstance(path, str)), key=lambda path: not path)
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))}
