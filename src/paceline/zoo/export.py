"""Export of trained checkpoints: fp16 weights, tokenizer, generation settings, recipe, model card."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from paceline.zoo.card import draft_card, target_card
from paceline.zoo.checkpoint import check_same_run
from paceline.zoo.errors import RecipeError
from paceline.zoo.measure import Measured, measure
from paceline.zoo.options import recorded
from paceline.zoo.stages import Workshop, draw_curves, stage_progress

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def halved(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """The weights in fp16, without the tied output head."""
    tensors = {name: value.half().contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            raise RecipeError(f"{name} does not fit into fp16: train again with a lower rate")
    return tensors


def write_model(model: LlamaForCausalLM, workshop: Workshop, folder: Path) -> None:
    """Write all files except recipe and card, in transformers' layout."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(halved(model), folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads(model.config.to_json_string(use_diff=True))
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "float16", "use_cache": True}
    write_json(folder / "config.json", config)
    generation = {"eos_token_id": workshop.stop_tokens, "pad_token_id": workshop.end_token}
    write_json(folder / "generation_config.json", generation)
    for name in TOKENIZER_FILES:
        shutil.copyfile(workshop.tokenizer_folder / name, folder / name)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def stage_record(workshop: Workshop, stage: str) -> dict[str, Any]:
    """How one model was made: the options to make it again, and the time and tokens it took."""
    options = recorded(workshop.out / stage)
    progress = stage_progress(workshop, stage)
    assert progress is not None  # as trained_model has read it before
    recent = progress.losses[-50:]
    return {
        "steps": progress.step,
        "tokens_seen": progress.step * options.step_tokens,
        "training_minutes": round(progress.seconds / 60, 1),
        "final_training_loss": round(sum(recent) / len(recent), 4),
        # the actual size, which is smaller than requested if the text has too few distinct pieces
        "options": {**asdict(options), "vocab_size": workshop.tokenizer.get_vocab_size()},
    }


def recipe(workshop: Workshop, models: dict[str, LlamaForCausalLM], measured: dict[str, Measured]) -> dict[str, Any]:
    """The content of recipe.json: enough to make the same files again, and their measurements."""
    return {
        "made_with": "python -m paceline.zoo.train",
        "parameters": {name: model.num_parameters() for name, model in models.items()},
        "stages": {name: stage_record(workshop, name) for name in models},
        "data": {
            "files_sha256": workshop.corpus.files,
            "shares": workshop.corpus.shares,
            "packed_tokens": workshop.pool.tokens,
            "epochs_in_pool": workshop.pool.epochs,
        },
        "held_out": {domain: values.rounded() for domain, values in measured.items()},
        "versions": {
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "safetensors": safetensors.__version__,
        },
    }


def export(workshop: Workshop, weights: Path, curve: Path, name: str) -> None:
    """Write `weights/NAME` and `weights/NAME-draft`, and the loss curves to `curve`."""
    # data options are those of the trained target, not those of the export command
    workshop.options = recorded(workshop.out / "target")
    models = {stage: workshop.trained_model(stage) for stage in ("target", "draft")}
    for stage in models:
        folder = workshop.out / stage
        check_same_run(folder, workshop.made_from(stage, recorded(folder)))
    folders = {"target": weights / name, "draft": weights / f"{name}-draft"}
    for stage, model in models.items():
        write_model(model, workshop, folders[stage])
    # measure the exported models, not the trained ones: fp16 weights, computed in fp32
    shipped = {stage: LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for stage, folder in folders.items()}
    measured = {
        domain: measure(shipped["target"], shipped["draft"], workshop.tokenizer, documents, workshop.end_token)
        for domain, documents in workshop.corpus.held_out.items()
        if documents
    }
    made = recipe(workshop, models, measured)
    cards = {"target": target_card(name, made), "draft": draft_card(name, made)}
    for stage, folder in folders.items():
        write_json(folder / "recipe.json", made)
        (folder / "README.md").write_text(cards[stage])
    draw_curves(workshop, curve)
