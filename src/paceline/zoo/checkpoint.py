"""Resumable checkpoints: folders `step-NNNNNN` with weights, optimiser state and a JSON, no pickle.

A checkpoint is written to a temporary folder and renamed, so that a folder with the final name is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn
from torch.optim import Optimizer

from paceline.zoo.errors import RecipeError
from paceline.zoo.optimizers import load_optimizer_tensors, optimizer_tensors


@dataclass
class Progress:
    """Where a run stands. The data position follows from `step` and the seed (see `pack.Stream`)."""

    seed: int
    step: int = 0
    steps: int = 0
    """Planned length; fixed once the decay has begun."""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    """Mean training loss of every step, nats per token."""
    made_from: dict[str, str] = field(default_factory=dict)
    """What the run depends on, by name: options, and hashes of tokenizer, data and teacher. Empty in older checkpoints."""


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint under `folder`."""
    found = sorted(path for path in folder.glob("step-*") if (path / "progress.json").is_file())
    return found[-1] if found else None


def save(folder: Path, model: nn.Module, optimizers: dict[str, Optimizer], progress: Progress) -> Path:
    """Write `folder/step-NNNNNN` and remove the earlier ones."""
    place = folder / f"step-{progress.step:06d}"
    part = folder / "writing"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_model(model, str(part / "model.safetensors"))
    save_file(optimizer_tensors(model, optimizers), part / "optimizer.safetensors")
    (part / "progress.json").write_text(json.dumps(asdict(progress)))
    for path in part.iterdir():
        # on disk before the rename: after a crash, a name without its data would be taken for a complete checkpoint
        with path.open("rb") as file:
            os.fsync(file.fileno())
    replaced = folder / "replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if place.exists():
        place.rename(replaced)
    part.rename(place)
    for path in (replaced, *folder.glob("step-*")):
        if path != place:
            shutil.rmtree(path, ignore_errors=True)
    return place


def check_same_run(folder: Path, made_from: dict[str, str]) -> None:
    """Raise RecipeError if the newest checkpoint was made from other inputs: the record would not describe its training."""
    place = latest(folder)
    held = read_progress(place).made_from if place is not None else {}
    other = [name for name, value in made_from.items() if held and held.get(name) != value]
    if other:
        raise RecipeError(
            f"the checkpoint {place} was made with other {', '.join(other)}: name another --out, or remove {folder}"
        )


def load_weights(place: Path, model: nn.Module) -> None:
    try:
        load_model(model, str(place / "model.safetensors"))
    except Exception as error:
        raise RecipeError(f"the checkpoint {place} does not fit this model: {error}") from None


def load(place: Path, model: nn.Module, optimizers: dict[str, Optimizer]) -> Progress:
    """Restore weights and optimiser state; returns the run's progress."""
    load_weights(place, model)
    try:
        load_optimizer_tensors(model, optimizers, load_file(place / "optimizer.safetensors"))
        return read_progress(place)
    except Exception as error:
        raise RecipeError(f"the checkpoint {place} is damaged: {error}") from None


def read_progress(place: Path) -> Progress:
    try:
        return Progress(**json.loads((place / "progress.json").read_text()))
    except (ValueError, TypeError) as error:
        raise RecipeError(f"the checkpoint {place} is damaged: {error}") from None
