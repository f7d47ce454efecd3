"""Container: how much of the machine this process may use by its control groups; all of it where Linux sets no limit.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max, memory.max), cgroup-v1/memory.rst, scheduler/sched-bwc.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

_ROOT = Path("/")


def processor_limit(root: Path = _ROOT) -> float:
    """Number of processors whose whole time this process may use; infinity without a limit. root: where proc and sys are."""
    return min([_processors(folder) for folder in _groups("cpu", root)], default=inf)


def memory_left(root: Path = _ROOT) -> float:
    """Bytes that this process and its group may still take; infinity without a limit."""
    return min([_left(folder) for folder in _groups("memory", root)], default=inf)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's groups under a controller, from the innermost outwards."""
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") and controllers:
            continue
        mount = mounts / (controller if controllers else "")
        # inside a container the path may be the host's, so that only the mount itself exists
        folder = mount / path.strip("/")
        yield from (one for one in (folder, *folder.parents) if one.is_relative_to(mount) and one.is_dir())


def _processors(folder: Path) -> float:
    quota, period = [*_words(folder / "cpu.max"), "", ""][:2]
    if not quota:
        quota, period = _word(folder / "cpu.cfs_quota_us"), _word(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else inf


def _left(folder: Path) -> float:
    for most, used, files in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, taken = _word(folder / most), _word(folder / used)
        if limit.isdecimal() and taken.isdecimal():
            # the page cache of inactive files is reclaimed when memory is needed
            counters = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
            return max(int(limit) - int(taken) + int(counters.get(files, "0")), 0)
    return inf


def _word(file: Path) -> str:
    """The first word of a file; empty where there is none."""
    return next(iter(_words(file)), "")


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
