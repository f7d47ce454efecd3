"""Muon for the hidden matrices, AdamW for the rest, and the warm-up / stable / decay schedule.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers" (torch.optim.Muon); Hu et al. 2024,
"MiniCPM", section 4 (the schedule). While the rate is stable, the length of the run may still change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Rates:
    """Peak learning rates."""

    matrices: float
    others: float


@dataclass(frozen=True)
class Schedule:
    """The factor on the peak rate at each step of a run of `steps`."""

    steps: int
    decay_share: float
    warmup_steps: int

    @property
    def decay_begin(self) -> int:
        return self.steps - int(self.steps * self.decay_share)

    def factor(self, step: int) -> float:
        """In (0, 1]; the last step's rate is small, but not zero."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        if step < self.decay_begin:
            return warm
        return warm * (self.steps - step) / (self.steps - self.decay_begin + 1)


def build_optimizers(model: nn.Module, rates: Rates) -> dict[str, Optimizer]:
    """The two optimisers by name."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return {
        "muon": torch.optim.Muon(matrices, lr=rates.matrices, weight_decay=0.05, momentum=0.95),
        "adamw": torch.optim.AdamW(others, lr=rates.others, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    }


def set_rates(optimizers: dict[str, Optimizer], rates: Rates, factor: float) -> None:
    for name, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            group["lr"] = factor * (rates.matrices if name == "muon" else rates.others)


def optimizer_tensors(model: nn.Module, optimizers: dict[str, Optimizer]) -> dict[str, Tensor]:
    """The optimisers' state as named tensors: `parameter/field`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{field}": torch.as_tensor(value)
        for optimizer in optimizers.values()
        for parameter, fields in optimizer.state.items()
        for field, value in fields.items()
    }


def load_optimizer_tensors(model: nn.Module, optimizers: dict[str, Optimizer], tensors: dict[str, Tensor]) -> None:
    """Restore the state returned by `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    owner: dict[Tensor, Optimizer] = {
        parameter: optimizer
        for optimizer in optimizers.values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for key, value in tensors.items():
        name, field = key.rsplit("/", 1)
        parameter = parameters[name]
        owner[parameter].state[parameter][field] = value
