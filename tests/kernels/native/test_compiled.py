"""What is told while kernels are compiled, and to whom."""

from __future__ import annotations

import logging
from time import sleep

import pytest
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.kernels.native import compiled


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
