"""The server's address and key, from environment variables set by run.py."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    return os.environ["PACELINE_URL"]


@pytest.fixture(scope="session")
def key() -> str:
    return os.environ["PACELINE_KEY"]
