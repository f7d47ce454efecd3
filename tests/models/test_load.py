"""Untrusted checkpoints: intact ones load, all others give one sentence, and no code they contain is ever run."""

from __future__ import annotations

import json
import shutil
import struct
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from paceline.cache.base import Branching
from paceline.models import embedded
from paceline.models.base import ModelError
from paceline.models.checkpoint import inspected, name_of
from paceline.models.context import context_length
from paceline.models.embedded import DEFAULT, draft_of, embedded_models
from paceline.models.load import load_model, resolve
from paceline.models.quiet import quiet, sentence
from paceline.models.stated import StatedConfig
from paceline.models.tokenizer import Tokenizer
from paceline.sequence import Sequence
from paceline.tree import DraftTree
from stepping import alone, missing, score, sequence
from tiny import CHAT_TEMPLATE, save_tiny, save_tokenizer, tiny_model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("whole") / "tiny")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "tiny"))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(ModelError) as error:
        action()
    message = str(error.value)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON file; None removes one."""
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def split(folder: Path) -> dict[str, str]:
    """Turn the one file into two shards with an index; returns the weight map."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    places = {}
    for shard, part in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
        save_file({name: tensors[name] for name in part}, folder / shard, metadata={"format": "pt"})
        places |= dict.fromkeys(part, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def test_a_whole_checkpoint_gives_its_own_numbers(whole: Path) -> None:
    model, reference = load_model(str(whole), native=False), tiny_model("llama", vocab_size=262)
    assert (model.vocab_size, model.context_length, model.eos_token_ids) == (262, 128, {2})
    assert model.branching is Branching.TREE
    assert not any(parameter.requires_grad for parameter in model.model.parameters())  # pyright: ignore[reportAttributeAccessIssue]
    owner, cache = sequence(0, [1, 50, 60, 70]), model.new_cache()
    got = score(model, cache, [missing(cache, owner, DraftTree.root(70))]).logits
    assert (got - alone(reference, owner.tokens)[-1:]).abs().max() < 2e-5


def test_packed_weights_are_counted_too(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, hidden_size=512)
    model = load_model(folder, native=False)
    held = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert model.weights_bytes >= held


def test_half_precision_files_are_widened_on_a_cpu(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    halves = {name: tensor.half() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(halves, tmp_path / "model.safetensors", metadata={"format": "pt"})
    edit(tmp_path / "config.json", dtype="float16")
    assert load_model(tmp_path, native=False).model.dtype is torch.float32  # pyright: ignore[reportAttributeAccessIssue]
    assert load_model(tmp_path, weights="bf16", native=False).model.dtype is torch.bfloat16  # pyright: ignore[reportAttributeAccessIssue]


def test_shards_load(folder: Path) -> None:
    split(folder)
    assert load_model(folder).branching is Branching.TREE


def test_tied_weights_need_not_be_stored_twice(tmp_path: Path) -> None:
    save_tiny(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert load_model(tmp_path).vocab_size == 262


def test_loading_is_silent(whole: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(whole)
    Tokenizer(whole)
    assert capfd.readouterr() == ("", "")


def test_logging_is_restored_once_the_last_of_nested_quiet_blocks_ends() -> None:
    level, filters = logging.get_verbosity(), list(warnings.filters)
    first, second = quiet(), quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert logging.get_verbosity() == logging.ERROR
    second.__exit__(None, None, None)
    assert (logging.get_verbosity(), warnings.filters) == (level, filters)


def test_eos_of_the_generation_config_comes_first(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[2, 7])
    assert load_model(folder).eos_token_ids == {2, 7}
    (folder / "generation_config.json").unlink()
    assert load_model(folder).eos_token_ids == {2}


def test_the_eos_of_the_text_of_a_model_that_also_sees_comes_last(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=None, text_config={"eos_token_id": [9, 10]})
    assert inspected(folder).eos_token_ids == {2, 9, 10}
    edit(folder / "config.json", eos_token_id=7)
    assert inspected(folder).eos_token_ids == {2, 7}
    edit(folder / "config.json", eos_token_id=None, text_config=["eos_token_id"])
    assert inspected(folder).eos_token_ids == {2}


def test_the_eos_of_the_tokenizer_ends_a_text_too(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[2])
    edit(
        folder / "tokenizer.json", added_tokens=[{"id": 8, "content": "<turn>"}, {"id": "x"}, 3, {"id": -1, "content": "<turn>"}]
    )
    edit(folder / "tokenizer_config.json", eos_token="<turn>")
    assert inspected(folder).eos_token_ids == {2, 8}
    listed = {
        "9": {"content": "<turn>"},
        "x": {"content": "<turn>"},
        "7": {"content": "<unk>"},
        "4" * 5000: {"content": "<turn>"},
    }
    edit(folder / "tokenizer_config.json", eos_token={"content": "<turn>"}, added_tokens_decoder=listed)
    assert inspected(folder).eos_token_ids == {2, 9}
    edit(folder / "tokenizer_config.json", eos_token=3)
    assert inspected(folder).eos_token_ids == {2}


def test_a_tokenizer_tells_its_own_eos_from_those_of_the_model(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[1, 2])
    assert inspected(folder).eos_token_ids == {1, 2}
    assert Tokenizer(folder).ends == {2}


def test_a_panic_of_the_tokenizers_library_is_told_in_words(folder: Path) -> None:
    edit(folder / "tokenizer.json", normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "x"})
    assert "cannot encode this text" in refusal(lambda: Tokenizer(folder).encode("the thing"))


def rewrite(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


def reheaded(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def overlapping(header: dict[str, Any]) -> None:
    names = [name for name in header if name != "__metadata__"]
    header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
    header[names[1]]["shape"] = header[names[0]]["shape"]


def negative(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["shape"] = [-64]


def in_utf_16(data: bytes) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    text = data[8 : 8 + length].decode().encode("utf-16")
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


DAMAGED_WEIGHTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (lambda file: rewrite(file, lambda _: b""), "truncated: it has 0 bytes"),
    "a few bytes": (lambda file: rewrite(file, lambda data: data[:5]), "truncated"),
    "half": (lambda file: rewrite(file, lambda data: data[: len(data) // 2]), "bytes of its tensors are missing"),
    "one byte short": (lambda file: rewrite(file, lambda data: data[:-1]), "truncated: 1 bytes"),
    "one byte long": (lambda file: rewrite(file, lambda data: data + b"!"), "1 bytes belong to no tensor"),
    "garbage": (lambda file: rewrite(file, lambda _: b"\x80\x04garbage" * 100), "header claims"),
    "huge header": (lambda file: rewrite(file, lambda data: struct.pack("<Q", 2**63) + data[8:]), "header claims"),
    "no json": (lambda file: rewrite(file, lambda data: data[:8] + b"\xff" * (len(data) - 8)), "not valid JSON"),
    "UTF-16 header": (lambda file: rewrite(file, in_utf_16), "not valid JSON"),
    "numbers as metadata": (
        lambda file: reheaded(file, lambda header: header.update(__metadata__={"step": 100})),
        "__metadata__",
    ),
    "list as metadata": (lambda file: reheaded(file, lambda header: header.update(__metadata__=[])), "__metadata__"),
    "list header": (lambda file: rewrite(file, lambda _: struct.pack("<Q", 2) + b"[]"), "not a JSON object"),
    "half a character in a name": (
        lambda file: reheaded(file, lambda header: header.update({"\ud800": header.pop("model.norm.weight")})),
        "not valid Unicode",
    ),
    "negative shape": (lambda file: reheaded(file, negative), "'model.norm.weight' does not add up"),
    "overlap": (lambda file: reheaded(file, overlapping), "damaged"),
    "unknown dtype": (lambda file: reheaded(file, lambda header: header["model.norm.weight"].update(dtype="X9")), "add up"),
    "html": (lambda file: rewrite(file, lambda _: b"<!doctype html><title>404</title>"), "header claims"),
}


@pytest.mark.parametrize("name", DAMAGED_WEIGHTS)
def test_damaged_weights_are_named(folder: Path, name: str) -> None:
    damage, words = DAMAGED_WEIGHTS[name]
    damage(folder / "model.safetensors")
    message = refusal(lambda: load_model(folder))
    assert words in message
    assert "model.safetensors" in message


def test_pickles_are_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(lambda: load_model(folder))


def test_a_pickle_beside_safetensors_is_not_opened(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert load_model(folder).branching is Branching.TREE


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00\x01", "[" * 100_000])
def test_damaged_configurations_are_named(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    assert "config.json" in refusal(lambda: load_model(folder))


def test_what_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    assert "no model directory" in refusal(lambda: load_model(str(tmp_path / "nowhere")))
    assert "is a file" in refusal(lambda: load_model(str(folder / "config.json")))
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing" in refusal(lambda: load_model(folder))
    (folder / "config.json").unlink()
    assert "config.json is missing" in refusal(lambda: load_model(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": None}, "no model_type"),
        ({"model_type": 7}, "no model_type"),
        ({"model_type": "gigachat9000"}, "'gigachat9000', which is unknown"),
        ({"model_type": "clip"}, "no causal language model"),
        ({"hidden_size": 128}, "config.json asks for"),
        ({"hidden_size": -64}, "cannot be loaded"),
        ({"hidden_size": "64"}, "not a valid 'llama' configuration"),
        ({"num_hidden_layers": 3}, "lacks 9 tensors"),
        ({"num_hidden_layers": 0}, "between 1 and 21"),
        ({"num_hidden_layers": -1}, "between 1 and 21"),
        ({"num_hidden_layers": 10**12}, "between 1 and 21"),
        ({"model_type": "gpt2", "n_layer": 10**12}, "between 1 and 21"),
        ({"text_config": {"num_hidden_layers": 10**12}}, "between 1 and 21"),
        ({"per_layer_config": {"1": {"max_position_embeddings": 64}}}, "configuration"),
        ({"vocab_size": 300}, "config.json asks for"),
        ({"vocab_size": 10**12}, "numbers, and its files hold"),
        ({"head_dim": 10**12}, "numbers, and its files hold"),
        ({"model_type": "gpt2", "n_positions": 10**12, "max_position_embeddings": None}, "numbers, and its files hold"),
        ({"num_attention_heads": 0}, "config"),
    ],
)
def test_foreign_configurations_are_named(folder: Path, changes: dict[str, Any], words: str) -> None:
    edit(folder / "config.json", **changes)
    assert words in refusal(lambda: load_model(folder))


def test_missing_weights_are_never_made_up(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    message = refusal(lambda: load_model(folder))
    assert "model.layers.1.mlp.up_proj.weight" in message


def test_an_output_layer_that_is_not_tied_must_be_there(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lm_head.weight" in refusal(lambda: load_model(folder))


def test_a_device_without_memory_for_a_model_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(PreTrainedModel, "to", full)
    said = refusal(lambda: load_model(folder, native=False))
    assert said == "the device has too little memory for 'tiny'"


def test_weights_that_are_not_numbers_are_refused(folder: Path) -> None:
    tensors = {name: tensor * float("nan") for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "not finite" in refusal(lambda: load_model(folder))


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        ("c.safetensors", "missing"),
        ("../tiny/a.safetensors", "no safetensors file of this folder"),
        ("/etc/passwd", "no safetensors file of this folder"),
        ("weights.bin", "no safetensors file of this folder"),
        (["a.safetensors"], "no safetensors file of this folder"),
    ],
)
def test_an_index_stays_in_its_folder(folder: Path, shard: Any, words: str) -> None:
    places: dict[str, Any] = {**split(folder), "lm_head.weight": shard}
    edit(folder / "model.safetensors.index.json", weight_map=places)
    assert words in refusal(lambda: load_model(folder))


def test_an_index_and_its_shards_agree(folder: Path) -> None:
    places = split(folder)
    edit(folder / "model.safetensors.index.json", weight_map=dict.fromkeys(places, "a.safetensors"))
    assert "does not hold it" in refusal(lambda: load_model(folder))
    edit(folder / "model.safetensors.index.json", weight_map=[])
    assert "weight_map" in refusal(lambda: load_model(folder))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("quantised", [None, {"quant_method": "modelopt"}])
def test_weights_whose_scales_nobody_reads_are_refused(folder: Path, kind: torch.dtype, quantised: dict[str, str] | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    narrow = {name: tensor.to(kind) for name, tensor in tensors.items() if "proj" in name}
    scales = {name.replace(".weight", ".weight_scale"): torch.ones(1) for name in narrow}
    save_file({**tensors, **narrow, **scales}, folder / "model.safetensors", {"format": "pt"})
    if quantised:
        edit(folder / "config.json", quantization_config=quantised)
    assert "weights of the type" in refusal(lambda: load_model(folder))


def hostile(folder: Path, model_type: str) -> Path:
    """Remote code for model, configuration and tokenizer; it would leave a marker file if it ran."""
    marker = folder.parent / "it_ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: ...\n")
    classes = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "evil.Evil")
    edit(folder / "config.json", model_type=model_type, auto_map=classes)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, tokenizer_class="Evil")
    return marker


def test_remote_code_never_runs(folder: Path) -> None:
    marker = hostile(folder, "evil")
    assert "code of its own" in refusal(lambda: load_model(folder))
    assert "tokenizer" in refusal(lambda: Tokenizer(folder))
    assert not marker.exists()


def test_a_known_architecture_ignores_its_remote_code(folder: Path) -> None:
    marker = hostile(folder, "llama")
    assert load_model(folder).branching is Branching.TREE
    assert not marker.exists()


def test_a_configuration_does_not_say_how_it_is_run(folder: Path) -> None:
    """A configuration may name a repository of attention kernels, which transformers would fetch and run."""
    choices = {"return_dict": False, "output_attentions": True, "use_cache": False}
    edit(folder / "config.json", attn_implementation="someone/kernels", _attn_implementation="someone/kernels", **choices)
    assert load_model(folder).branching is Branching.TREE


_ORIGINAL = "original_max_position_embeddings"
LONG: dict[str, Any] = {"rope_type": "longrope", _ORIGINAL: 64}


@pytest.mark.parametrize(
    ("parameters", "length"),
    [
        (None, 256),
        ({"rope_type": "default"}, 256),
        ({"rope_type": "yarn", "original_max_position_embeddings": 64}, 256),
        (LONG, 64),
        ({"rope_type": "longrope"}, 128),
        ({"sliding_attention": {"rope_type": "default"}, "full_attention": LONG}, 64),
        ({**LONG, "original_max_position_embeddings": 512}, 256),
        ({**LONG, "rope_type": "yarn", "long_mscale": 1.3}, 64),
    ],
    ids=str,
)
def test_the_context_ends_where_a_longrope_changes(parameters: dict[str, Any] | None, length: int) -> None:
    config = StatedConfig(max_position_embeddings=256, original_max_position_embeddings=128, rope_parameters=parameters)
    assert context_length(config) == length


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"index_topk": 24, "layer_types": ["full_attention", "indexed_attention"]}, 24),
        ({"index_topk": 24, "layer_types": ["full_attention", "sliding_attention"]}, 256),
        (
            {
                "index_topk": 24,
                "layer_types": ["compressed_sparse_attention"],
                "compress_rates": {"compressed_sparse_attention": 4},
            },
            96,
        ),
        ({"keep_window_size": 32, "model_type": "doge"}, 32),
        ({"keep_window_size": 32}, 256),
    ],
    ids=["DeepSeek-V3.2", "a form without such layers", "DeepSeek-V4", "Doge", "a stray setting"],
)
def test_the_context_ends_where_sparse_attention_begins_to_select(settings: dict[str, Any], length: int) -> None:
    """Past it transformers contradicts itself: whole, in chunks and token by token, it selects other tokens."""
    assert context_length(StatedConfig(max_position_embeddings=256, rope_parameters=None, **settings)) == length


def test_a_model_with_sparse_attention_is_served_up_to_where_it_selects(tmp_path: Path) -> None:
    save_tiny(tmp_path, kind="deepseek_v32", index_topk=24)
    assert load_model(tmp_path).context_length == 24


@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.5, 0.6)], ids=str)
def test_a_token_of_mamba_has_the_same_numbers_alone_and_among_others(tmp_path: Path, limit: tuple[float, float]) -> None:
    """transformers limits the time steps of several rows, but not those of one. It writes infinity as an object."""
    save_tiny(tmp_path, kind="mamba2", time_step_limit=limit)
    model, text = load_model(tmp_path), tuple(range(3, 43))
    cache, other = model.new_cache(), model.new_cache()
    owner = sequence(0, text)
    whole = model.logits_after([(owner, text)], cache)
    for token in text:
        last = model.logits_after([(owner, (token,))], other)
    assert float((whole - last).abs().max() / whole.std()) < 1e-3


STRETCHED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "Qwen2.5, as its page says": ({"max_position_embeddings": 256}, {"type": "yarn", "factor": 4.0, _ORIGINAL: 256}, 1024),
    "Qwen3, with room for answers": ({"max_position_embeddings": 320}, {"type": "yarn", "factor": 4.0, _ORIGINAL: 256}, 1024),
    "DeepSeek, stretched already": ({"max_position_embeddings": 2560}, {"type": "yarn", "factor": 40, _ORIGINAL: 64}, 2560),
    "less than what it is stretched to": ({"max_position_embeddings": 2048}, {"type": "yarn", "factor": 40, _ORIGINAL: 64}, 2048),
    "more than what it is stretched to": ({"max_position_embeddings": 300}, {"type": "yarn", "factor": 1.1, _ORIGINAL: 256}, 300),
    "Gemma 3 and DeepSeek-Coder": ({"max_position_embeddings": 256}, {"type": "linear", "factor": 4.0}, 256),
    "Vicuna of 16k": ({"max_position_embeddings": 256, "max_sequence_length": 1024}, {"type": "linear", "factor": 4.0}, 1024),
    "another length": ({"max_position_embeddings": 256, "max_sequence_length": 2048}, {"type": "linear", "factor": 4.0}, 256),
    "Llama 3.1": (
        {"max_position_embeddings": 128},
        {"rope_type": "llama3", "factor": 8.0, _ORIGINAL: 128, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        128,
    ),
    "Qwen2.5-1M, without its chunks": (
        {"max_position_embeddings": 1024, "dual_chunk_attention_config": {"chunk_size": 256, "local_size": 8, _ORIGINAL: 256}},
        {"type": "default"},
        256,
    ),
    "dynamic, which changes past it": ({"max_position_embeddings": 256}, {"type": "dynamic", "factor": 4.0}, 256),
}


@pytest.mark.parametrize("case", STRETCHED)
def test_a_stretched_rotation_reaches_as_far_as_its_files_mean(tmp_path: Path, case: str) -> None:
    lengths, scaling, length = STRETCHED[case]
    save_tiny(tmp_path)
    edit(tmp_path / "config.json", rope_parameters=None, rope_theta=10000.0, rope_scaling=scaling, **lengths)
    assert load_model(tmp_path).context_length == length


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"type": "ntk", "factor": 4.0}, "cannot be loaded: there is no 'ntk'"),
        ({"type": "yarn"}, "is not a valid 'llama' configuration: Missing required keys in `rope_parameters` for"),
        ({"type": ["su"]}, "unhashable"),
    ],
    ids=str,
)
def test_a_rotation_that_nobody_knows_is_refused_in_words(folder: Path, scaling: dict[str, Any], said: str) -> None:
    edit(folder / "config.json", rope_parameters=None, rope_theta=10000.0, rope_scaling=scaling)
    with pytest.raises(ModelError) as error:
        load_model(folder)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("older", ["", "longrope", "su"])
def test_a_longrope_gives_a_row_the_same_numbers_beside_others(tmp_path: Path, older: str) -> None:
    """Past the first 64 positions transformers applies the long factors to all rows of a call."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0}
    over: dict[str, Any] = {"max_position_embeddings": 256, "original_max_position_embeddings": 64}
    over["rope_parameters"] = {**LONG, **factors, "rope_theta": 10000.0}
    save_tiny(tmp_path, kind="phi3", **over)
    reference = tiny_model("phi3", **over, vocab_size=262)
    if older:
        edit(tmp_path / "config.json", rope_parameters=None, rope_theta=10000.0, rope_scaling={"type": older, **factors})
    model, text = load_model(tmp_path), list(range(3, 103))
    assert model.context_length == 64

    def first_row(*owners: Sequence) -> torch.Tensor:
        cache = model.new_cache()
        return score(model, cache, [missing(cache, owner, DraftTree.root(owner.root)) for owner in owners]).logits[0]

    own = alone(reference, text[:20])[-1]
    assert (alone(reference, text[:65])[19] - own).abs().max() > 1e-2
    short, beside = sequence(0, text[:20]), sequence(1, text[:61])
    assert (first_row(short) - own).abs().max() < 1e-4
    assert (first_row(short, beside) - own).abs().max() < 1e-4


def test_tokenizer_goes_both_ways(whole: Path) -> None:
    tokenizer = Tokenizer(whole)
    text = "the thin café in 東京"
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert ids[1:] == tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>" + text
    assert tokenizer.vocab_size == 262


_TEXTS = ("", " ", "the thin café in 東京", "a</s>b <unk>", "  two  spaces\n\ttab ", "\u0000\U0001f600", "x" * 3000)


def test_texts_become_what_transformers_makes_of_them(whole: Path) -> None:
    for path in (whole, *(one.path for one in embedded_models())):
        tokenizer, reference = Tokenizer(path), PreTrainedTokenizerFast.from_pretrained(str(path))
        assert "library" not in vars(tokenizer), "read without transformers"
        for text in _TEXTS:
            for special in (True, False):
                ids = reference.encode(text, add_special_tokens=special)
                assert tokenizer.encode(text, special) == ids
                assert tokenizer.decode(ids, special) == reference.decode(
                    ids, skip_special_tokens=special, clean_up_tokenization_spaces=False
                )
        assert (tokenizer.vocab_size, tokenizer.vocabulary) == (len(reference), reference.get_vocab())


@pytest.mark.parametrize("read_by", ["tokenizers", "transformers"])
def test_other_threads_run_while_a_long_text_is_encoded(folder: Path, read_by: str) -> None:
    if read_by == "transformers":
        edit(folder / "tokenizer_config.json", add_bos_token=False)
    tokenizer, ended, ticks = Tokenizer(folder), Event(), list[float]()
    assert ("library" in vars(tokenizer)) == (read_by == "transformers")

    def tick() -> None:
        while not ended.wait(0.001):
            ticks.append(perf_counter())

    ticking = Thread(target=tick)
    ticking.start()
    began = perf_counter()
    ids = tokenizer.encode("the thin inner " * 20_000)
    over = perf_counter()
    ended.set()
    ticking.join()
    assert len(ids) > 20_000
    inside = [began, *(at for at in ticks if began < at < over), over]
    longest = max(after - before for before, after in pairwise(inside))
    assert longest < 0.5 * (over - began), "encoding holds the GIL"


@pytest.mark.parametrize(
    "settings", [{"add_bos_token": False}, {"bos_token": "<elsewhere>"}, {"additional_special_tokens": ["<x>"]}]
)
def test_whatever_may_change_a_text_is_left_to_transformers(folder: Path, settings: dict[str, Any]) -> None:
    edit(folder / "tokenizer_config.json", **settings)
    assert "library" in vars(Tokenizer(folder))


@pytest.mark.parametrize("settings", [{"eos_token": {"content": "</s>"}}, {"eos_token": 3}])
def test_settings_of_other_types_are_one_sentence(folder: Path, settings: dict[str, Any]) -> None:
    edit(folder / "tokenizer_config.json", **settings)
    assert "tokenizer" in refusal(lambda: Tokenizer(folder))


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize(
    "name", ["LlamaTokenizer", "LlamaTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizerFast"]
)
def test_a_text_is_split_as_the_file_says_whatever_class_is_named(folder: Path, name: str) -> None:
    file = folder / "tokenizer.json"
    edit(file, pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]})
    edit(folder / "tokenizer_config.json", tokenizer_class=name)
    told, tokenizer = Backend.from_file(str(file)), Tokenizer(folder)
    for text in ("Hello  there, 1234 times", "a\n\nb", "\u00e9t\u00e9 'tis"):
        assert tokenizer.encode(text) == told.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == told.decode(told.encode(text).ids)


def test_a_tokenizer_that_is_missing_is_named_by_its_file(folder: Path) -> None:
    assert Tokenizer(folder).vocabulary
    (folder / "tokenizer.json").unlink()
    said = refusal(lambda: Tokenizer(folder))
    assert "tokenizer.json is missing" in said
    assert not said.endswith((":", ","))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("it failed.\nsee there", "it failed"),
        ("could not read one of:\n  (1) this,\n  (2) that", "could not read one of: (1) this"),
        ("\n\nfirst:\n\nsecond:\n\tthird.\nfourth", "first: second: third"),
        ("nothing follows:\n", "nothing follows"),
        ("", "ValueError"),
        (" \n", "ValueError"),
    ],
)
def test_the_sentence_of_an_error_does_not_end_at_a_colon(message: str, said: str) -> None:
    assert sentence(ValueError(message)) == said


def test_files_of_older_tokenizers_are_left_to_transformers(folder: Path) -> None:
    (folder / "added_tokens.json").write_text('{"<new>": 262}')
    assert "library" in vars(Tokenizer(folder))


@pytest.mark.parametrize("change", [lambda one: one.enable_padding(length=8), lambda one: one.enable_truncation(5)])
def test_nothing_is_padded_or_cut(whole: Path, folder: Path, change: Callable[[Backend], None]) -> None:
    held = Backend.from_file(str(folder / "tokenizer.json"))
    change(held)
    held.save(str(folder / "tokenizer.json"))
    for text in _TEXTS:
        assert Tokenizer(folder).encode(text) == Tokenizer(whole).encode(text)


def test_chat_follows_the_model_template(whole: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(whole)
    ids = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<user>hi\n<assistant>"
    same = tokenizer.chat([{"role": "user", "content": "hi"}], variables={"enable_thinking": False})
    assert same == ids, "a template need not use its variables"
    save_tiny(tmp_path, chat_template=None)
    bare = Tokenizer(tmp_path)
    assert not bare.has_chat_template
    assert "no chat template" in refusal(lambda: bare.chat([{"role": "user", "content": "hi"}]))


def test_variables_reach_the_template_but_not_what_renders_it(tmp_path: Path) -> None:
    save_tiny(tmp_path, chat_template="{% if enable_thinking is false %}plain{% endif %}{{ size }}{{ messages[0].content }}")
    tokenizer, messages = Tokenizer(tmp_path), [{"role": "user", "content": "hi"}]
    ids = tokenizer.chat(messages, variables={"enable_thinking": False, "size": 3})
    assert tokenizer.decode(ids) == "plain3hi"
    for name in ("chat_template", "documents", "tokenize", "add_generation_prompt", "kwargs", "messages"):
        assert f"cannot be named '{name}'" in refusal(lambda name=name: tokenizer.chat(messages, variables={name: "x"}))


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{% if %}",
        "{{ raise_exception('no\\nway') }}",
        "{{ '{}'.format() }}",
        "{{ 7|xmlattr }}",
        "{{ cycler() }}",
    ],
)
def test_hostile_templates_are_stopped(tmp_path: Path, template: str) -> None:
    save_tiny(tmp_path, chat_template=template)
    tokenizer = Tokenizer(tmp_path)
    assert "chat template" in refusal(lambda: tokenizer.chat([{"role": "user", "content": "hi"}]))


@pytest.mark.parametrize("content", ["", "{}", "{", "null", '{"model": {"type": "BPE"}}'])
def test_damaged_tokenizers_are_named(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    assert "tokenizer" in refusal(lambda: Tokenizer(folder))


@pytest.mark.parametrize("content", ["", "{", "[]", pytest.param('{"a":' * 100_000, id="deep")])
def test_damaged_settings_are_named(folder: Path, content: str) -> None:
    (folder / "tokenizer_config.json").write_text(content)
    assert "tokenizer_config.json" in refusal(lambda: Tokenizer(folder))


@pytest.mark.parametrize(
    "model",
    [
        models.Unigram([("a", 0.0)], None),
        models.WordLevel({"a": 0}, unk_token="<unk>"),
        models.BPE({"a": 0}, [], unk_token="<unk>"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_texts_that_a_tokenizer_has_no_tokens_for_are_one_sentence(folder: Path, model: Any) -> None:
    Backend(model).save(str(folder / "tokenizer.json"))
    edit(folder / "tokenizer_config.json", unk_token=None, bos_token=None, eos_token=None)
    tokenizer = Tokenizer(folder)
    assert tokenizer.encode("a") == [0]
    assert "cannot encode" in refusal(lambda: tokenizer.encode("bcd"))


def test_absent_tokenizers_are_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer" in refusal(lambda: Tokenizer(folder))
    (folder / "tokenizer_config.json").write_text("[]")
    assert "tokenizer_config.json" in refusal(lambda: Tokenizer(folder))
    (folder / "tokenizer_config.json").unlink()
    assert "tokenizer.json is missing" in refusal(lambda: Tokenizer(folder))
    (folder / "tekken.json").write_text("{}")
    assert "its tekken.json is not read" in refusal(lambda: Tokenizer(folder))


@pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="it can be read here")
def test_a_tokenizer_of_sentencepiece_alone_names_the_packages_that_read_it(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    edit(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    (folder / "tokenizer.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    assert refusal(lambda: Tokenizer(folder)).endswith(
        "reading its tokenizer.model needs the packages sentencepiece and protobuf"
    )


def test_vocabularies_are_compared_token_by_token(whole: Path, folder: Path) -> None:
    target = Tokenizer(whole)
    assert target.same_vocabulary(Tokenizer(folder))
    model = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = model["model"]["vocab"]
    vocabulary["!"], vocabulary["#"] = vocabulary["#"], vocabulary["!"]
    (folder / "tokenizer.json").write_text(json.dumps(model))
    assert not target.same_vocabulary(Tokenizer(folder))


def test_embedded_models_are_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "WEIGHTS_FOLDER", tmp_path)
    assert embedded_models() == []
    assert "not part of this installation" in refusal(lambda: resolve(DEFAULT))
    target = save_tiny(tmp_path / DEFAULT, chat_template=CHAT_TEMPLATE)
    assert draft_of(target) is None
    draft = save_tiny(tmp_path / f"{DEFAULT}-draft", disturbed=0.05)
    assert resolve(DEFAULT) == target
    assert draft_of(target) == draft
    assert draft_of(draft) is None
    assert draft_of(tmp_path.parent / DEFAULT) is None
    found = embedded_models()
    assert [(one.name, one.role, one.draft) for one in found] == [
        (DEFAULT, "target", draft.name),
        (draft.name, "draft", None),
    ]
    assert found[0].parameters == sum(p.numel() for p in tiny_model("llama", vocab_size=262).parameters())
    assert found[0].size_bytes == (target / "model.safetensors").stat().st_size


def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> str:
        raise OSError("connection refused.\nlong story")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    assert refusal(lambda: resolve("someone/something")).endswith("connection refused")


def test_a_repository_of_pickles_is_told_so(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The pickles were not fetched, so the folder does not show that there are any."""
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    assert refusal(lambda: resolve("someone/pickles")) == (
        "the Hub gave no safetensors of 'someone/pickles', and Paceline reads nothing else"
    )


def test_a_model_of_the_hub_is_called_by_its_id(whole: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--acme--tiny-lm" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    for file in whole.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert load_model(snapshot).name == "acme/tiny-lm"
    assert load_model(whole).name == whole.name
    assert name_of(Path("/somewhere/snapshots/mine")) == "mine"


def test_only_safe_files_are_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch, whole: Path) -> None:
    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(whole)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert resolve("someone/something") == whole
    assert asked["name"] == "someone/something"
    assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in asked["allow_patterns"])
    # Mistral's checkpoints contain all weights a second time
    assert any(fnmatch("consolidated.safetensors", pattern) for pattern in asked["ignore_patterns"])
    assert not any(fnmatch("model-00001-of-00003.safetensors", pattern) for pattern in asked["ignore_patterns"])


@pytest.mark.parametrize("name", ["../nowhere", "a/b/c", "", "/no/such/place", "bad name"])
def test_what_cannot_be_a_hub_id_is_not_fetched(name: str) -> None:
    assert "no model directory" in refusal(lambda: resolve(name))


def test_a_tokenizer_of_the_same_bytes_is_read_once(tmp_path: Path) -> None:
    """A draft model usually has its target's tokenizer."""
    for name in ("target", "draft", "other"):
        (tmp_path / name).mkdir()
        save_tokenizer(tmp_path / name)
    changed = (tmp_path / "other" / "tokenizer.json").read_text() + "\n"
    (tmp_path / "other" / "tokenizer.json").write_text(changed)
    target, draft, other = (Tokenizer(tmp_path / name) for name in ("target", "draft", "other"))
    assert target._bare is draft._bare is not None
    assert other._bare is not target._bare
    assert target.same_vocabulary(draft)
    assert target.same_vocabulary(other)


def test_a_sample_of_the_weights_tells_a_model_that_was_trained_on(tmp_path: Path) -> None:
    """Its folder may have the same name, its files the same sizes."""
    folders = [save_tiny(tmp_path / str(number) / "checkpoint", seed) for number, seed in enumerate((3, 3, 4))]
    first, again, other = (inspected(folder).sampled_sha256() for folder in folders)
    assert first == again != other
