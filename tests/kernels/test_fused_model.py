"""Llama-form models in kernels for a GPU, under Triton's interpreter: every family is what transformers computes, and a row is what
it is alone, however it is fed and whatever rides beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

from models.test_families import largest_error
from models.test_native import CASES, checkpoint
from paceline.kernels import row_products
from paceline.models import fused
from paceline.models.base import KV_CACHES, ModelError
from paceline.models.checkpoint import inspected
from paceline.models.forms import Unsuited
from paceline.models.fused import FusedModel, fused_model
from paceline.models.load import _configuration, context_length
from paceline.step import Verdict
from paceline.tree import DraftTree
from stepping import missing, score, sequence
from tiny import tiny_model

pytestmark = pytest.mark.skipif(
    os.environ["TRITON_INTERPRET"] == "0", reason="these compare tiny float32 models on a processor; benchmarks/gpu.py has bits"
)
TOLERANCE = 1e-4


def road(folder: Path, weights: str | None = None, kv_cache: str | None = None) -> FusedModel:
    found = inspected(folder)
    config = _configuration(found)
    return fused_model(found, config, context_length(config), torch.device("cpu"), weights, kv_cache)


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_what_transformers_computes(tmp_path: Path, case: str) -> None:
    """Prompts in chunks, trees, a commit that moves keys and the next step of three sequences at once."""
    kind, over = CASES[case]
    folder, reference = checkpoint(tmp_path, kind, **over)
    assert largest_error(road(folder), reference) < TOLERANCE
