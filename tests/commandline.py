"""Runs the command line inside a test, and saves a pair of tiny models for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli import main
from paceline.step import Verdict
from paceline.verifiers.match import Match
from tiny import save_tiny


def save_pair(folder: Path) -> tuple[str, str]:
    """Saves a target and a draft that often agrees with it; returns their folders."""
    longer = {"max_position_embeddings": 512}
    return str(save_tiny(folder / "target", 3, **longer)), str(save_tiny(folder / "draft", 3, disturbed=0.3, **longer))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command line once; returns its exit code."""
    monkeypatch.setattr("sys.argv", ["paceline", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def believe_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the verifier accept every drafted token."""

    def gullible(self, sequences, trees, logits):
        verdicts = []
        for tree, rows in zip(trees, logits, strict=True):
            path = tree.path(len(tree) - 1)
            tokens = (*(tree.tokens[node] for node in path), int(rows[path[-1] if path else 0].argmax()))
            verdicts.append(Verdict(path, tokens, len(path)))
        return verdicts

    monkeypatch.setattr(Match, "__call__", gullible)
