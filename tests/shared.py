"""Optional data and checkpoints for tests; CONTRIBUTING.md describes them and their sources."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(os.environ.get("PACELINE_TEST_DATA") or Path(__file__).parents[2] / "shared")
CHECKPOINTS, DATA = FOLDER / "checkpoints", FOLDER / "data"
WHY = "needs PACELINE_TEST_DATA, a folder of data and checkpoints (CONTRIBUTING.md)"
