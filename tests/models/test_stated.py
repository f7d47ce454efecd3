"""A configuration read by Paceline equals that read by transformers, or is left to transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models.test_native import CASES
from native import checkpoint
from paceline.models.checkpoint import inspected
from paceline.models.context import context_length
from paceline.models.embedded import DEFAULT, embedded_path
from paceline.models.forms import form_of
from paceline.models.load import _configuration
from paceline.models.rotation import Rotation
from paceline.models.stated import stated


def check_alike(ours: Any, theirs: Any) -> None:
    assert form_of(ours) == form_of(theirs)
    assert context_length(ours) == context_length(theirs)
    rotary = form_of(theirs).rotary
    for mine, wanted in zip(Rotation(ours, rotary).tables(50, ""), Rotation(theirs, rotary).tables(50, ""), strict=True):
        assert torch.equal(mine, wanted)


READ_HERE = {"llama", "llama, tied", "llama, biases", "heads of 48", "mistral, no window", "qwen2", "qwen3"}


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_read_here_equals_that_read_by_transformers(tmp_path: Path, case: str) -> None:
    kind, over = CASES[case]
    folder = checkpoint(tmp_path, kind, **over)[0]
    found = inspected(folder)
    ours = stated(found.config)
    assert (ours is not None) or case not in READ_HERE
    if ours is not None:
        check_alike(ours, _configuration(found))


def test_files_of_earlier_versions_are_read_too(tmp_path: Path) -> None:
    found = inspected(checkpoint(tmp_path)[0])
    config = {name: value for name, value in found.config.items() if name != "rope_parameters"}
    ours = stated(config | {"rope_theta": 500000.0, "rope_scaling": None})
    assert ours is not None
    assert ours.rope_parameters == {"rope_type": "default", "rope_theta": 500000.0}
    assert stated(config | {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}) is None


CHANGES: list[dict[str, Any]] = [
    {"partial_rotary_factor": 0.5},
    {"quantization_config": {}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
    {"num_attention_heads": 0},
    {"num_attention_heads": True},
    {"hidden_size": "64"},
    {"rms_norm_eps": None},
    {"tie_word_embeddings": "yes"},
    {"layer_types": ["sliding_attention", "full_attention"]},
    {"layer_types": 5},
    {"layer_types": [["a"]]},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10**400}},
    {"sliding_window": 4},
    {"model_type": "gemma"},
    {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_whatever_is_not_plain_is_left_to_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = json.loads((checkpoint(tmp_path)[0] / "config.json").read_text())
    assert stated(config) is not None
    assert stated(config | changes) is None


def test_a_configuration_that_lacks_a_needed_key_is_left_to_transformers(tmp_path: Path) -> None:
    config = json.loads((checkpoint(tmp_path)[0] / "config.json").read_text())
    for name in ("attention_bias", "mlp_bias", "num_key_value_heads", "hidden_act", "rms_norm_eps", "rope_parameters"):
        assert stated({key: value for key, value in config.items() if key != name}) is None, name


@pytest.mark.skipif(embedded_path(DEFAULT) is None, reason="the embedded model is not installed")
def test_the_embedded_model_starts_without_the_compiler_of_torch() -> None:
    code = (
        "import sys; from paceline.engine.llm import LLM; LLM(None, 'none').generate('hello');"
        "sys.exit(any(name in sys.modules for name in ('torch._dynamo', 'transformers.configuration_utils')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
