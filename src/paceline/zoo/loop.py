"""The training loop: from a stream of batches to checkpoints."""

from __future__ import annotations

import math
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TaskID, TextColumn, TimeRemainingColumn
from torch import nn

from paceline.zoo import checkpoint
from paceline.zoo.checkpoint import Progress
from paceline.zoo.errors import RecipeError
from paceline.zoo.losses import Loss
from paceline.zoo.optimizers import Rates, Schedule, build_optimizers, set_rates
from paceline.zoo.pack import Stream, inputs_and_targets

LINE_EVERY_STEPS = 10  # without a terminal, a line of output instead of a progress bar


@dataclass(frozen=True)
class Plan:
    """How long and how fast one model is trained."""

    steps: int
    decay_share: float
    warmup_steps: int
    rates: Rates
    minutes: float | None = None
    """Time budget: the decay begins early enough for the whole run to take about this long."""
    checkpoint_every_s: float = 300.0
    pause_at: int | None = None
    """Save and return after this many steps; the same call later continues."""
    compiled: bool = False

    def until(self, steps: int) -> int:
        """The step at which a run of so many steps ends or pauses."""
        return min(steps, self.pause_at or steps)


def shortened(plan: Plan, progress: Progress) -> int:
    """The length of the run: as planned, or shorter once the time budget suffices only for the decay."""
    begin = Schedule(progress.steps, plan.decay_share, plan.warmup_steps).decay_begin
    if plan.minutes is None or progress.step == 0 or progress.step >= begin:
        return progress.steps
    if progress.seconds < plan.minutes * 60 * (1 - plan.decay_share):
        return progress.steps
    return max(progress.step + 1, int(progress.step / (1 - plan.decay_share)))


class _Interrupts:
    """Ctrl-C waits for the end of a step, since half an optimiser's step cannot be resumed; a second Ctrl-C does not wait."""

    asked = False

    def __enter__(self) -> _Interrupts:
        # only the main thread can handle signals
        self._before = signal.signal(signal.SIGINT, self._note) if current_thread() is main_thread() else None
        return self

    def _note(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def train(
    model: nn.Module, loss: Loss, stream: Stream, plan: Plan, folder: Path, name: str, made_from: dict[str, str] | None = None
) -> Progress:
    """Train `model` in place, resuming from `folder` if it holds a checkpoint.

    made_from: what the run depends on, stored in its checkpoints. Raises RecipeError if the checkpoint has more steps than the
    plan, or its length is already fixed at another number.
    """
    optimizers = build_optimizers(model, plan.rates)
    progress = Progress(seed=stream.seed, made_from=made_from or {})
    place = checkpoint.latest(folder)
    if place is not None:
        progress = checkpoint.load(place, model, optimizers)
    progress.steps = planned_steps(plan, progress, name)
    saved_step = progress.step if place is not None else None
    if plan.compiled:
        loss = torch.compile(loss, dynamic=False)
    tokens_per_step = stream.batch_tokens * stream.batches_per_step
    model.train()
    saved_s = time.monotonic()
    with _bar() as bar, _Interrupts() as interrupts:
        task = bar.add_task(name, total=progress.steps, completed=progress.step, note="")
        while progress.step < plan.until(progress.steps) and not interrupts.asked:
            begun_s = time.monotonic()
            progress.steps = shortened(plan, progress)
            schedule = Schedule(progress.steps, plan.decay_share, plan.warmup_steps)
            set_rates(optimizers, plan.rates, schedule.factor(progress.step))
            total = 0.0
            for rows in stream.batches(progress.step):
                value = loss(*inputs_and_targets(rows, stream.pool.end_token))
                (value / stream.batches_per_step).backward()
                total += value.item() / stream.batches_per_step
            if not math.isfinite(total):
                raise RecipeError(f"the loss of {name} step {progress.step + 1} is no number: train with a lower rate")
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            spent_s = time.monotonic() - begun_s
            progress.step += 1
            progress.seconds += spent_s
            progress.losses.append(round(total, 5))
            _show(bar, task, progress, tokens_per_step / spent_s, name)
            if time.monotonic() - saved_s > plan.checkpoint_every_s:
                checkpoint.save(folder, model, optimizers, progress)
                saved_s, saved_step = time.monotonic(), progress.step
        if progress.step != saved_step:
            checkpoint.save(folder, model, optimizers, progress)
        if interrupts.asked:
            raise KeyboardInterrupt
    return progress


def planned_steps(plan: Plan, progress: Progress, name: str) -> int:
    """The length of a run with this progress: the plan's, until the decay has begun.

    Raises RecipeError if the run has more steps than the plan, or its length is already fixed at another number.
    """
    if plan.steps < progress.step:
        raise RecipeError(f"the {name} has {progress.step} steps already, more than the {plan.steps} that are asked for")
    if progress.steps == 0 or not _decaying(plan, progress):
        return plan.steps
    if plan.minutes is None and plan.steps != progress.steps:
        raise RecipeError(f"the rate of the {name} falls towards step {progress.steps} already: another length is a new run")
    return progress.steps


def _decaying(plan: Plan, progress: Progress) -> bool:
    return progress.step > Schedule(progress.steps, plan.decay_share, plan.warmup_steps).decay_begin


def _bar() -> Bar:
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )


def _show(bar: Bar, task: TaskID, progress: Progress, tokens_per_s: float, name: str) -> None:
    recent = progress.losses[-20:]
    note = f"loss {sum(recent) / len(recent):.3f}  {tokens_per_s:,.0f} tokens/s"
    bar.update(task, completed=progress.step, total=progress.steps, note=note)
    if bar.disable and (progress.step % LINE_EVERY_STEPS == 0 or progress.step == progress.steps):
        left_s = (progress.steps - progress.step) * progress.seconds / progress.step
        print(
            f"{name} step {progress.step}/{progress.steps}  {note}  {left_s / 60:.1f} min left",
            file=sys.stderr,
            flush=True,
        )
