"""Checkpoint: a model folder, validated and described before any weight is read.

Files are untrusted. Every size in them is checked against the file's length, weights are read from safetensors only, and code in
a checkpoint is never run.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.models.base import ModelError
from paceline.models.ends import end_tokens
from paceline.models.quiet import sentence

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5", ".gguf")
_LARGEST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format itself."""
_SAMPLES, _SAMPLED_BYTES = 256, 4096
"""Places of a file of weights that are read for its digest, and bytes of each."""
_HUB_CACHED = "models--"
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


@dataclass(frozen=True)
class Checkpoint:
    """A folder that passed the checks. config: the content of config.json. eos_token_ids: from `end_tokens`."""

    path: Path
    config: dict[str, Any]
    shards: tuple[Path, ...]
    parameters: int
    eos_token_ids: frozenset[int]

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def size_bytes(self) -> int:
        return sum(shard.stat().st_size for shard in self.shards)

    def sampled_sha256(self) -> str:
        """Digest of a sample of the weights: quick for any size, and another one for a model that was trained on. Raises
        ModelError where a file cannot be read."""
        digest = sha256()
        try:
            for shard in self.shards:
                size = shard.stat().st_size
                with shard.open("rb") as file:
                    for place in range(0, size, max(-(-size // _SAMPLES), _SAMPLED_BYTES)):
                        file.seek(place)
                        digest.update(file.read(_SAMPLED_BYTES))
        except OSError as error:
            raise ModelError(f"'{self.path}' cannot be read: {sentence(error)}") from error
        return digest.hexdigest()


def name_of(folder: Path) -> str:
    """A model's name: that of its folder, or, for a snapshot in the Hub's cache, whose folder is named by its revision, its Hub
    id (huggingface_hub, "Understand caching")."""
    held = folder.parent.parent.name
    if folder.parent.name == "snapshots" and held.startswith(_HUB_CACHED):
        return held.removeprefix(_HUB_CACHED).replace("--", "/")
    return folder.name


def inspected(path: Path) -> Checkpoint:
    """Check a folder. Raises ModelError with one sentence that names the file at fault."""
    if not path.is_dir():
        raise ModelError(f"there is no model directory '{path}'")
    config = read_object(path / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"'{path / 'config.json'}' names no model_type")
    try:
        placed = _placed(path)
        held = {shard: _tensors(shard) for shard in sorted(set(placed.values()) or {path / WEIGHTS})}
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {sentence(error)}") from error
    for name, shard in placed.items():
        if name not in held[shard]:
            raise ModelError(f"'{path / INDEX}' says that tensor '{name}' is in '{shard.name}', which does not hold it")
    _check_layers(path / "config.json", config, sum(len(tensors) for tensors in held.values()))
    return Checkpoint(
        path,
        config,
        tuple(held),
        sum(size for tensors in held.values() for size in tensors.values()),
        end_tokens(path, config, read_if_there),
    )


def _check_layers(file: Path, config: dict[str, Any], tensors: int) -> None:
    """Raise ModelError if config.json states more layers than there are tensors, before anything of that size is built."""
    for part in (config, config.get("text_config")):
        counts = {name: part.get(name) for name in _LAYER_COUNTS} if isinstance(part, dict) else {}
        for name, count in counts.items():
            if type(count) is int and not 0 < count <= tensors:
                raise ModelError(f"the {name} of '{file}' does not lie between 1 and {tensors}, the number of tensors")


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError if the file is missing or holds anything else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"), object_hook=_number)
    except FileNotFoundError as error:
        raise ModelError(f"'{file.parent}' is not a model: {file.name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"'{file}' is not valid JSON: {sentence(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"'{file}' does not hold a JSON object")
    return value


def _number(value: dict[str, Any]) -> Any:
    """The float that transformers writes as an object, since JSON has no infinity."""
    written = value.get("__float__")
    return float(written) if len(value) == 1 and written in ("Infinity", "-Infinity", "NaN") else value


def read_if_there(file: Path) -> dict[str, Any]:
    """As `read_object`; empty if the file does not exist."""
    return read_object(file) if file.is_file() else {}


def _placed(path: Path) -> dict[str, Path]:
    """Tensor name -> shard, from the index; empty if a single file holds all tensors."""
    if (path / WEIGHTS).is_file():
        return {}
    if not (path / INDEX).is_file():
        pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
        if pickles:
            raise ModelError(f"'{path}' holds its weights in '{pickles[0]}', but Paceline reads safetensors only")
        raise ModelError(f"'{path}' has no weights: {WEIGHTS} is missing")
    places = read_object(path / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"'{path / INDEX}' has no weight_map")
    for shard in places.values():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelError(f"'{path / INDEX}' points to '{shard}', which is no safetensors file of this folder")
        if not (path / shard).is_file():
            raise ModelError(f"'{path / INDEX}' points to '{shard}', which is missing")
    return {name: path / shard for name, shard in places.items()}


def _tensors(file: Path) -> dict[str, int]:
    """Tensor name -> number of elements, from the header, which must account for every byte of the file."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise ModelError(f"'{file}' is truncated: it has {size} bytes")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(size - 8, _LARGEST_HEADER_BYTES):
            raise ModelError(f"'{file}' is no whole safetensors file: its header claims {length} bytes of {size}")
        text = stream.read(length)
    try:
        # given bytes, json would accept UTF-16 as well
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{file}' is not a safetensors file: its header is not valid JSON") from error
    if not isinstance(header, dict):
        raise ModelError(f"'{file}' is not a safetensors file: its header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())):
        raise ModelError(f"'{file}' is damaged: its __metadata__ does not map text to text")
    try:
        "".join([*header, *(metadata or {}), *(metadata or {}).values()]).encode()
    except UnicodeEncodeError as error:
        raise ModelError(f"'{file}' is not a safetensors file: its header is not valid Unicode") from error
    spans = {name: _span(file, name, entry) for name, entry in header.items()}
    place = 0
    for name, (start, end, _) in sorted(spans.items(), key=lambda item: item[1][:2]):
        if start != place:
            raise ModelError(f"'{file}' is damaged: tensor '{name}' does not begin where the one before it ends")
        place = end
    if place > size - 8 - length:
        raise ModelError(f"'{file}' is truncated: {place - (size - 8 - length)} bytes of its tensors are missing")
    if place < size - 8 - length:
        raise ModelError(f"'{file}' is damaged: {size - 8 - length - place} bytes belong to no tensor")
    return {name: elements for name, (_, _, elements) in spans.items()}


def _span(file: Path, name: str, entry: Any) -> tuple[int, int, int]:
    """The byte range of one tensor, [start, end), and its number of elements."""
    try:
        bits, shape, (start, end) = _BITS[entry["dtype"]], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, end]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError
        elements = math.prod(shape)
        if (end - start) * 8 != elements * bits:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"'{file}' is damaged: the entry of tensor '{name}' does not add up") from error
    return start, end, elements
