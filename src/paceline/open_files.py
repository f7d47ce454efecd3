"""Open files: as many as this process may have, where each request has a connection of its own."""

from __future__ import annotations

import sys
from contextlib import suppress

_OPEN_MAX = 10240
"""macOS says that there is no limit, and grants no more."""


def raise_limit() -> None:
    """Let this process, and those that it starts from now on, open as many files as they ever may: shells grant far fewer."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
