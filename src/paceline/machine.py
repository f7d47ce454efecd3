"""The machine: its name, for whoever reads a number that was measured on it, memory it has left, and what this process took."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def processor() -> str:
    """The processor's name where the system tells it."""
    return core().get("model name", platform.machine())


def core() -> dict[str, str]:
    """What Linux says of the first core, by its own names; nothing elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def most_threads() -> int:
    """Threads that can run at once on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes() -> int:
    """Memory that is free, or that the system would give at once; a gigabyte where it does not tell."""
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    if available is not None:
        return available
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 30


def peak_resident_bytes() -> int | None:
    """The most memory this process ever held; None where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    held = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return int(held) * 1024 if held else None
