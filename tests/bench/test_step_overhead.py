"""The benchmark of a step's overhead runs: nothing else would show that it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_step_overhead_benchmark_runs_and_writes_a_record(tmp_path: Path) -> None:
    script, out = Path(__file__).parents[2] / "benchmarks" / "step_overhead.py", tmp_path / "record.json"
    command = [sys.executable, str(script), "--steps", "4", "--turns", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["argv"]
