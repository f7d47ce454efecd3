"""The recipe's stages; each reads the previous stage's files from the run's folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from paceline.zoo import checkpoint
from paceline.zoo.chat import END, END_OF_TEXT
from paceline.zoo.checkpoint import Progress
from paceline.zoo.errors import RecipeError
from paceline.zoo.loop import Plan, planned_steps, train
from paceline.zoo.losses import distillation_loss, next_token_loss
from paceline.zoo.models import build_model
from paceline.zoo.options import Options, recorded
from paceline.zoo.pack import Pool, Stream, build_pool, load_pool, save_pool
from paceline.zoo.plot import plot_losses
from paceline.zoo.sources import Corpus, built_in, from_files, sha256
from paceline.zoo.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer


@dataclass
class Workshop:
    """One run's folder and options; expensive objects are made once, on first use."""

    options: Options
    data: Path
    texts: list[Path]
    out: Path

    @property
    def tokenizer_folder(self) -> Path:
        return self.out / "tokenizer"

    @cached_property
    def corpus(self) -> Corpus:
        if self.texts:
            return from_files(self.texts)
        return built_in(self.data, self.options.seed)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer_folder)

    @property
    def end_token(self) -> int:
        return self.token(END_OF_TEXT)

    @property
    def stop_tokens(self) -> list[int]:
        """Tokens that end a generation: the end of a document, and the end of a chat turn."""
        return [self.token(END_OF_TEXT), self.token(END)]

    def token(self, text: str) -> int:
        found = self.tokenizer.token_to_id(text)
        if found is None:
            raise RecipeError(f"the tokenizer in {self.tokenizer_folder} lacks {text}")
        return found

    @cached_property
    def pool(self) -> Pool:
        """The packed rows, cached in a file whose name is a hash of everything they depend on."""
        options = self.options
        sizes = (options.tokens, options.short_context, options.context, options.seed)
        about = [self.corpus.files, self.corpus.shares, sizes, self.tokenizer.to_str()]
        name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]
        path = self.out / f"pool-{name}.safetensors"
        if not path.is_file():
            total, short, long, seed = sizes
            pool = build_pool(self.corpus, self.tokenizer, self.end_token, total, short, long, seed)
            self.out.mkdir(parents=True, exist_ok=True)
            save_pool(pool, path)
        return load_pool(path)

    def stream(self, seed: int) -> Stream:
        options = self.options
        return Stream(self.pool, seed, options.batch_tokens, options.batches_per_step)

    def made_from(self, stage: str, options: Options) -> dict[str, str]:
        """Everything a stage's model depends on except the length of its training, by name."""
        made = {f"--{name.replace('_', '-')}": str(value) for name, value in options.of(stage).items()}
        made["tokenizer"] = hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()
        made["data"] = hashlib.sha256(json.dumps(self.corpus.files).encode()).hexdigest()
        if stage == "draft" and (place := checkpoint.latest(self.out / "target")) is not None:
            made["target"] = sha256(place / "model.safetensors")
        return made

    def new_model(self, stage: str, options: Options) -> LlamaForCausalLM:
        shape = options.target_shape if stage == "target" else options.draft_shape
        vocab_size = self.tokenizer.get_vocab_size()
        return build_model(shape, vocab_size, options.context, self.end_token, options.seed)

    def trained_model(self, stage: str) -> LlamaForCausalLM:
        """The model of a finished stage, in the shape it was trained with."""
        folder = self.out / stage
        place = checkpoint.latest(folder)
        if place is None:
            raise RecipeError(f"there is no {stage} in {self.out}: run --what {stage} first")
        progress = checkpoint.read_progress(place)
        if progress.step < progress.steps:
            raise RecipeError(f"the {stage} in {self.out} has {progress.step} of {progress.steps} steps: finish it first")
        model = self.new_model(stage, recorded(folder))
        checkpoint.load_weights(place, model)
        return model.eval()


def make_tokenizer(workshop: Workshop) -> None:
    options = workshop.options
    tokenizer = train_tokenizer(workshop.corpus, options.vocab_size, options.seed)
    save_tokenizer(tokenizer, workshop.tokenizer_folder, options.context)


def make_model(workshop: Workshop, stage: str, pause_at: int | None, checkpoint_every_s: float) -> Progress:
    """Train the model of the stage "target" or "draft"."""
    options = workshop.options
    target = workshop.trained_model("target") if stage == "draft" else None
    # a different order than the target's, so that the two do not see the same batches
    stream = workshop.stream(options.seed + (stage == "draft"))
    model = workshop.new_model(stage, options)
    made_from = workshop.made_from(stage, options)
    loss = next_token_loss(model) if target is None else distillation_loss(model, target, options.draft_data_share)
    plan = options.plan(stage, pause_at, checkpoint_every_s)
    _begin(workshop, stage, plan, made_from)
    return train(model, loss, stream, plan, workshop.out / stage, stage, made_from)


def _begin(workshop: Workshop, stage: str, plan: Plan, made_from: dict[str, str]) -> None:
    """Record the options that a stage continues with. Raises RecipeError if it cannot continue.

    A command that is refused, or has nothing left to train, does not change them: they must describe how the weights were made.
    """
    folder = workshop.out / stage
    checkpoint.check_same_run(folder, made_from)
    progress = stage_progress(workshop, stage)
    if progress is None or progress.step < plan.until(planned_steps(plan, progress, stage)):
        workshop.options.record(folder)


def stage_progress(workshop: Workshop, stage: str) -> Progress | None:
    place = checkpoint.latest(workshop.out / stage)
    return checkpoint.read_progress(place) if place else None


def draw_curves(workshop: Workshop, path: Path) -> None:
    """The loss curves of whatever has been trained so far."""
    runs = {}
    for stage in ("target", "draft"):
        progress = stage_progress(workshop, stage)
        if progress is not None and progress.losses:
            step_tokens = recorded(workshop.out / stage).step_tokens
            label = stage if stage == "target" else "draft (against the target's distribution)"
            runs[label] = (progress, step_tokens)
    if runs:
        plot_losses(runs, path)
