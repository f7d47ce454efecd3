"""The commit of a record is that of the source tree it ran from, or none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from paceline.bench import origin


def git(folder: Path, *arguments: str) -> str:
    me = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    return subprocess.run(["git", "-C", str(folder), *me, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def test_compilers_of_kernels_are_named_beside_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "_PACKAGES", ("torch", "numba", "not-installed-anywhere"))
    assert origin.origin()["versions"].keys() == {"paceline", "python", "torch", "numba"}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
def test_a_repository_around_an_installation_is_not_taken_for_the_packages_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / ".venv" / "paceline"
    (package / "bench").mkdir(parents=True)
    (package / "version.py").write_text("")
    monkeypatch.setattr(origin, "__file__", str(package / "bench" / "origin.py"))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "a project of somebody's")
    assert origin.commit() is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "the package itself")
    assert origin.commit() == git(tmp_path, "rev-parse", "HEAD")
    (package / "version.py").write_text("changed")
    assert origin.commit() == f"{git(tmp_path, 'rev-parse', 'HEAD')} with changes"
