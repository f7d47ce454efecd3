"""What is told while kernels are compiled, and to whom."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.kernels.native import cache_folder, compiled
from paceline.kernels.native.compiled import SOURCES
from paceline.kernels.native.products import _product_of


def test_compiling_is_told_and_reading_from_disk_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_PATIENCE_S", 0.02)
    with caplog.at_level(logging.INFO, "paceline"):
        with compiled.announced():
            pass
        sleep(0.1)
        assert not caplog.messages
        with compiled.announced():
            sleep(0.2)
    assert caplog.messages == ["compiling kernels for this processor; later starts find them on disk"]


def test_every_command_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("paceline")
    monkeypatch.setattr(log, "level", logging.NOTSET)
    assert CliRunner().invoke(app, ["models"]).exit_code == 0
    assert log.isEnabledFor(logging.INFO)
    assert log.handlers


def test_formats_are_kept_in_files_of_their_own() -> None:
    """Two processes that keep two formats at once would write to one index, and one of them could find the other's code."""
    places = {_product_of(name, SOURCES)._cache._cache_file._index_path for name in ("int8", "int4")}
    assert len(places) == 2


def test_where_nothing_can_be_written_kernels_are_kept_for_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    cache_folder.provided()
    assert "NUMBA_CACHE_DIR" not in os.environ
    monkeypatch.setattr(cache_folder, "_writable", lambda folder: False)
    monkeypatch.setattr(cache_folder, "mkdtemp", lambda prefix: str(tmp_path))
    cache_folder.provided()
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path)
    # a folder that the user named stays
    monkeypatch.setenv("NUMBA_CACHE_DIR", "elsewhere")
    cache_folder.provided()
    assert os.environ["NUMBA_CACHE_DIR"] == "elsewhere"
    file = tmp_path / "file"
    file.touch()
    monkeypatch.undo()
    assert not cache_folder._writable(file / "below")
    assert cache_folder._writable(tmp_path / "new")


def test_kernels_that_cannot_be_read_are_compiled_anew(tmp_path: Path) -> None:
    code = (
        "from paceline.kernels.native.threads import spread, _lead_part, SOURCES;"
        "import logging; logging.basicConfig(); print(_lead_part(SOURCES).address > 0)"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    for cut in (False, True):
        for file in tmp_path.rglob("*.nbi") if cut else ():
            file.write_bytes(b"")
        ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout.strip()) == (0, "True"), ran.stderr
        assert ("compiled anew" in ran.stderr) == cut
    assert [*tmp_path.rglob("*.nbi")]
