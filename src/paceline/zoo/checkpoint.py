"""Resumable checkpoints: folders `step-NNNNNN` with weights, optimiser state and a JSON, no pickle.

A checkpoint is written beside its place and renamed, so that what has the name is whole.
"""

from __future__ import annotations

import json
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


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint under `folder`."""
    found = sorted(path for path in folder.glob("step-*") if (path / "progress.json").is_file())
    return found[-1] if found else None


def save(folder: Path, model: nn.Module, optimizers: dict[str, Optimizer], progress: Progress) -> Path:
    """Write `folder/step-NNNNNN` and remove the ones before it."""
    place = folder / f"step-{progress.step:06d}"
    part = folder / "writing"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_model(model, str(part / "model.safetensors"))
    save_file(optimizer_tensors(model, optimizers), part / "optimizer.safetensors")
    (part / "progress.json").write_text(json.dumps(asdict(progress)))
    if place.exists():
        shutil.rmtree(place)
    part.rename(place)
    for path in folder.glob("step-*"):
        if path != place:
            shutil.rmtree(path)
    return place


def load_weights(place: Path, model: nn.Module) -> None:
    try:
        load_model(model, str(place / "model.safetensors"))
    except Exception as error:
        raise RecipeError(f"the checkpoint {place} does not fit this model: {error}") from None


def load(place: Path, model: nn.Module, optimizers: dict[str, Optimizer]) -> Progress:
    """Put weights and optimiser state back; returns where the run stood."""
    load_weights(place, model)
    try:
        load_optimizer_tensors(model, optimizers, load_file(place / "optimizer.safetensors"))
        return read_progress(place)
    except Exception as error:
        raise RecipeError(f"the checkpoint {place} is damaged: {error}") from None


def read_progress(place: Path) -> Progress:
    return Progress(**json.loads((place / "progress.json").read_text()))
