"""Data and checkpoints that tests use where they are at hand; CONTRIBUTING.md says what they are and where they come from."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(os.environ.get("PACELINE_TEST_DATA") or Path(__file__).parents[2] / "shared")
CHECKPOINTS, DATA = FOLDER / "checkpoints", FOLDER / "data"
WHY = "needs PACELINE_TEST_DATA, a folder of data and checkpoints (CONTRIBUTING.md)"
