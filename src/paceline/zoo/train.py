"""The recipe's command line: `python -m paceline.zoo.train`.

It makes tokenizer, target and draft from the folder given by --data, or the files given by --text, and exports them.
Each stage can be run alone with --what, stopped at any time, and continued by the same command.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors import SafetensorError

from paceline.zoo.checkpoint import Progress
from paceline.zoo.errors import RecipeError
from paceline.zoo.options import Options
from paceline.zoo.plot import PICTURES
from paceline.zoo.stages import Workshop, draw_curves, make_model, make_tokenizer

PACKAGE = Path(__file__).resolve().parents[1]


app = typer.Typer(add_completion=False)


class What(StrEnum):
    """Which stage to run."""

    tokenizer = "tokenizer"
    target = "target"
    draft = "draft"
    export = "export"
    all = "all"


@app.command()
def main(
    what: Annotated[What, typer.Option(help="stage to run")] = What.all,
    data: Annotated[Path | None, typer.Option(help="folder of the built-in mixture; needed without --text")] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="text or JSONL file to train on instead of the mixture; may be repeated"),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for checkpoints")] = Path("runs/zoo"),
    weights: Annotated[Path, typer.Option(help="folder to export to")] = PACKAGE / "weights",
    curve: Annotated[Path | None, typer.Option(help="picture of the loss curves; default: loss.png in --out")] = None,
    name: Annotated[str, typer.Option(help="name of the exported target")] = "paceline-14m",
    seed: int = 20,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all")] = None,
    vocab_size: int = 4096,
    tokens: Annotated[int, typer.Option(help="tokens to pack, over all domains")] = 12_000_000,
    context: int = 1024,
    short_context: Annotated[int, typer.Option(help="length of the rows for short documents")] = 256,
    batch_tokens: int = 4096,
    batches_per_step: int = 3,
    warmup_steps: int = 30,
    decay_share: Annotated[float, typer.Option(help="last part of a run, with falling rate")] = 0.28,
    matrix_rate: Annotated[float, typer.Option(help="peak rate of Muon")] = 0.02,
    other_rate: Annotated[float, typer.Option(help="peak rate of AdamW")] = 0.004,
    compiled: Annotated[bool, typer.Option(help="use torch.compile")] = False,
    steps: Annotated[int, typer.Option(help="steps of the target")] = 1000,
    minutes: Annotated[float | None, typer.Option(help="time budget of the target")] = None,
    hidden: int = 384,
    layers: int = 8,
    heads: int = 6,
    kv_heads: int = 2,
    intermediate: int = 1024,
    draft_steps: Annotated[int, typer.Option(help="steps of the draft")] = 800,
    draft_minutes: Annotated[float | None, typer.Option(help="time budget of the draft")] = None,
    draft_hidden: int = 192,
    draft_layers: int = 2,
    draft_heads: int = 3,
    draft_kv_heads: int = 1,
    draft_intermediate: int = 512,
    draft_data_share: Annotated[float, typer.Option(help="weight of the data's own tokens")] = 0.1,
    pause_at: Annotated[int | None, typer.Option(help="save and stop after this step", min=1)] = None,
    checkpoint_every_s: float = 300.0,
) -> None:
    """Train the tokenizer, the target and its draft, and export them."""
    given = locals()
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    try:
        options.check()
        if threads is not None:
            if threads < 1:
                raise RecipeError("--threads must be at least 1")
            torch.set_num_threads(threads)
        if data is None and not text:
            raise RecipeError("there is nothing to train on: name the folder of the mixture with --data, or files with --text")
        if what != What.tokenizer and find_spec("matplotlib") is None:
            raise RecipeError("the loss curves need matplotlib: install paceline[train]")
        if curve is not None and curve.suffix.lower() not in PICTURES:
            raise RecipeError(f"--curve {curve}: its name must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
        if text and what in (What.export, What.all) and weights == PACKAGE / "weights":
            raise RecipeError("what is trained on --text would replace the embedded models: name a folder with --weights")
        # with --text, files are read instead of the mixture, and the data folder is not used
        workshop = Workshop(options, data or Path(), text or [], out)
        if what == What.tokenizer or (what == What.all and not (workshop.tokenizer_folder / "tokenizer.json").is_file()):
            make_tokenizer(workshop)
        for stage in (What.target, What.draft):
            if what in (stage, What.all):
                progress = make_model(workshop, stage, pause_at, checkpoint_every_s)
                if paused(stage, progress, workshop):
                    return
        if what in (What.export, What.all):
            from paceline.zoo.export import export

            export(workshop, weights, out / "loss.png" if curve is None else curve, name)
    # a full disk, or a folder that cannot be written, is reported in the same way as the recipe's own errors
    except (RecipeError, OSError, SafetensorError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues from the newest checkpoint, where there is one", err=True)
        sys.exit(130)


def paused(stage: str, progress: Progress, workshop: Workshop) -> bool:
    """Draw the loss curves, and return whether a stage is paused: an unfinished model is neither distilled nor exported."""
    draw_curves(workshop, workshop.out / "loss.png")
    if progress.step == progress.steps:
        return False
    typer.echo(f"paused: the {stage} has {progress.step} of {progress.steps} steps", err=True)
    return True


if __name__ == "__main__":
    app()
