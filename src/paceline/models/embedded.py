"""Embedded models: those shipped as package data, so that the first command needs no download.

A folder per model under `weights/`; the draft of `name` is the folder `name-draft`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.models.checkpoint import inspected

WEIGHTS_FOLDER = Path(__file__).resolve().parent.parent / "weights"
DEFAULT = "paceline-14m"
"""The model used when none is given."""
_DRAFT = "-draft"


@dataclass(frozen=True)
class Embedded:
    """One shipped model. role: "target" or "draft"; draft: the name of the model that drafts for it, if one is shipped."""

    name: str
    path: Path
    parameters: int
    size_bytes: int
    role: str
    draft: str | None


def embedded_path(name: str) -> Path | None:
    """The folder of a shipped model, or None if there is none of that name."""
    path = WEIGHTS_FOLDER / name
    plain = Path(name).name == name
    return path if plain and (path / "config.json").is_file() else None


def embedded_models() -> list[Embedded]:
    """The shipped models, by name; empty if the weights are not installed."""
    folders = sorted(WEIGHTS_FOLDER.iterdir()) if WEIGHTS_FOLDER.is_dir() else []
    return [_described(folder) for folder in folders if embedded_path(folder.name) is not None]


def _described(folder: Path) -> Embedded:
    checkpoint = inspected(folder)
    draft = folder.name + _DRAFT
    return Embedded(
        folder.name,
        folder,
        checkpoint.parameters,
        checkpoint.size_bytes,
        "draft" if folder.name.endswith(_DRAFT) else "target",
        draft if embedded_path(draft) is not None else None,
    )


def draft_of(path: Path | str) -> Path | None:
    """The shipped draft model of a shipped target, or None."""
    folder = Path(path).resolve()
    return embedded_path(folder.name + _DRAFT) if folder.parent == WEIGHTS_FOLDER else None
