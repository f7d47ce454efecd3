"""Origin: where measurements come from: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from paceline.machine import core, processor
from paceline.version import __version__

_PACKAGES = ("torch", "transformers", "numpy", "numba", "llvmlite", "triton")
"""Those that are installed are named: what runs a model, and what compiles our kernels."""
_INSTRUCTIONS = ("avx", "amx", "f16c", "fma")


def origin() -> dict[str, Any]:
    """Machine, versions, commit and date, for a record."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            **_details(),
            **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        },
        "versions": {
            "paceline": __version__,
            "python": platform.python_version(),
            **_versions(),
        },
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _details() -> dict[str, Any]:
    """Properties that distinguish processors with the same name, and the huge-page setting; empty without Linux's files."""
    cpu, pages = core(), ""
    with suppress(OSError):
        pages = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
    return {
        "family": [cpu[key] for key in ("cpu family", "model", "stepping") if key in cpu],
        "instructions": [flag for flag in cpu.get("flags", "").split() if flag.startswith(_INSTRUCTIONS)],
        "huge_pages": pages.partition("[")[2].partition("]")[0] or None,
    }


def commit() -> str | None:
    """The commit of the source tree this runs from, and whether it has changes; None outside of a source tree."""
    folder = Path(__file__).parents[1]
    try:
        # an installed package may lie inside an unrelated repository
        _git(folder, "ls-files", "--error-unmatch", "version.py")
        head = _git(folder, "rev-parse", "HEAD")
        return f"{head} with changes" if _git(folder, "status", "--porcelain", "--", ".") else head
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
