"""The recipe's options, as recorded with the models it makes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.zoo.errors import RecipeError
from paceline.zoo.loop import Plan
from paceline.zoo.models import Shape
from paceline.zoo.optimizers import Rates

SIZES = ("hidden", "layers", "heads", "kv_heads", "intermediate")
_COUNTS = (
    *("steps", "draft_steps", "tokens", "batches_per_step", "warmup_steps"),
    *SIZES,
    *(f"draft_{size}" for size in SIZES),
)
"""Options that must be at least 1."""
SHARED = (
    *("seed", "vocab_size", "tokens", "context", "short_context", "batch_tokens", "batches_per_step", "warmup_steps"),
    *("decay_share", "matrix_rate", "other_rate"),
)
"""Options that affect both target and draft."""
DRAFT = (*(f"draft_{size}" for size in SIZES), "draft_data_share")
"""Options of the draft alone."""


@dataclass(frozen=True)
class Options:
    """All options that affect the models; folders and the stage to run are not included."""

    seed: int
    vocab_size: int
    tokens: int
    context: int
    short_context: int
    batch_tokens: int
    batches_per_step: int
    warmup_steps: int
    decay_share: float
    matrix_rate: float
    other_rate: float
    compiled: bool
    steps: int
    minutes: float | None
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    draft_steps: int
    draft_minutes: float | None
    draft_hidden: int
    draft_layers: int
    draft_heads: int
    draft_kv_heads: int
    draft_intermediate: int
    draft_data_share: float

    def of(self, stage: str) -> dict[str, object]:
        """The options that affect a stage's model, except its number of steps, and the vocabulary size, which the tokenizer
        determines."""
        names = {*SHARED, *(SIZES if stage == "target" else DRAFT)} - {"vocab_size"}
        return {name: value for name, value in asdict(self).items() if name in names}

    def check(self) -> None:
        """Raise a RecipeError for sizes that cannot work."""
        if not 0 <= self.seed < 1 << 63:
            raise RecipeError("--seed must lie between 0 and 2 ** 63")
        if not 0 <= self.draft_data_share <= 1:
            raise RecipeError("--draft-data-share must lie between 0 and 1")
        for name, value in asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise RecipeError(f"--{name.replace('_', '-')} must be a number")
            if isinstance(value, int | float) and value < 0:
                raise RecipeError(f"--{name.replace('_', '-')} must not be negative")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise RecipeError(f"--{name.replace('_', '-')} must be at least 1")
        if not 0 < self.decay_share < 1:
            raise RecipeError("--decay-share must lie between 0 and 1")
        if not 1 < self.short_context <= self.context <= self.batch_tokens:
            raise RecipeError("sizes must satisfy 1 < --short-context <= --context <= --batch-tokens")
        for shape in (self.target_shape, self.draft_shape):
            if shape.hidden % shape.heads or shape.heads % shape.kv_heads:
                raise RecipeError("heads must divide the hidden size, and kv heads must divide heads")
            if shape.hidden // shape.heads % 2:
                raise RecipeError("the hidden size must give every head an even number of channels, which are turned in pairs")

    @property
    def target_shape(self) -> Shape:
        return Shape(self.hidden, self.layers, self.heads, self.kv_heads, self.intermediate)

    @property
    def draft_shape(self) -> Shape:
        return Shape(
            self.draft_hidden,
            self.draft_layers,
            self.draft_heads,
            self.draft_kv_heads,
            self.draft_intermediate,
        )

    @property
    def step_tokens(self) -> int:
        return self.batch_tokens * self.batches_per_step

    def plan(self, stage: str, pause_at: int | None, checkpoint_every_s: float) -> Plan:
        """The plan of the stage "target" or "draft"."""
        is_target = stage == "target"
        return Plan(
            steps=self.steps if is_target else self.draft_steps,
            decay_share=self.decay_share,
            warmup_steps=self.warmup_steps,
            rates=Rates(self.matrix_rate, self.other_rate),
            minutes=self.minutes if is_target else self.draft_minutes,
            checkpoint_every_s=checkpoint_every_s,
            pause_at=pause_at,
            compiled=self.compiled,
        )

    def record(self, folder: Path) -> None:
        """Write the options to the folder of the run that uses them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "options.json").write_text(json.dumps(asdict(self), indent=2) + "\n")


def recorded(folder: Path) -> Options:
    """The options a run was last started with."""
    try:
        return Options(**json.loads((folder / "options.json").read_text()))
    except FileNotFoundError:
        raise RecipeError(f"there is no run in {folder}: train it first") from None
    except (ValueError, TypeError):
        raise RecipeError(f"{folder / 'options.json'} is not of this recipe") from None
