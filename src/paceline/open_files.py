"""Open files: raises this process's limit, since each request has its own connection."""

from __future__ import annotations

import sys
from contextlib import suppress

_OPEN_MAX = 10240
"""macOS reports no limit, but grants no more than this."""


def raise_limit() -> None:
    """Raise the limit of this process, and of those it starts from now on, to the highest allowed: shells set a far lower one."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
