"""The machine: its name, to go with numbers measured on it, the memory it has left, and the memory that this process took."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from functools import cache
from math import ceil, isinf
from pathlib import Path

from paceline.container import memory_left, processor_limit


def processor() -> str:
    """The processor's name, or its architecture where the system does not report a name."""
    return core().get("model name", platform.machine())


def core() -> dict[str, str]:
    """Linux's fields for the first core, by name; empty on other systems."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def most_threads() -> int:
    """Threads that can run at once: one for each processor that this process may use, within its container's limit."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, _allowed())


@cache
def _allowed() -> int:
    """Most threads for a container's processor time: with more, it is used up early, and all of them then wait."""
    limit = processor_limit()
    return sys.maxsize if isinf(limit) else max(ceil(limit), 1)


def free_bytes() -> int:
    """Memory that is available at once, also within this container's limit; a gigabyte where the system does not report it."""
    return int(min(_available(), memory_left()))


def _available() -> int:
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    if available is not None:
        return available
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 30


def user_cache() -> Path | None:
    """Paceline's folder among this user's caches; None without a home directory."""
    usual = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with suppress(RuntimeError):
        return Path(usual).expanduser().absolute() / "paceline"
    return None


def expanded(path: str | Path) -> Path:
    """A path with `~` expanded. Raises OSError where there is no such home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise OSError(f"there is no such home as in '{path}'") from error


def peak_resident_bytes() -> int | None:
    """The most memory this process ever held; None where the system does not report it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    held = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return int(held) * 1024 if held else None
