"""Simon Willison's `llm` command, with a model of extra-openai-models.yaml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("options", [[], ["--no-stream"]])
def test_prompt(tmp_path: Path, url: str, key: str, options: list[str]) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: paceline\n  model_name: paceline-14m\n  api_base: {url}/v1\n  api_key_name: paceline\n"
    )
    (tmp_path / "keys.json").write_text(f'{{"paceline": "{key}"}}')
    command = [
        sys.executable,
        "-m",
        "llm",
        "-m",
        "paceline",
        *options,
        "-o",
        "max_tokens",
        "24",
        "-o",
        "temperature",
        "0",
        "Hello",
    ]
    said = subprocess.run(
        command, env={**os.environ, "LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()
