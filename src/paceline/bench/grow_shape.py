"""The shape of a grown model: each dimension before and after."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from paceline.bench.errors import BenchError
from paceline.models.checkpoint import Checkpoint

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures that can be grown."""
MOST_LAYERS = 1024
_LEAST_EPSILON = 1e-6


@dataclass(frozen=True)
class Growth:
    """layers: total number of blocks. width: channels of the residual stream; None for the model's own."""

    layers: int
    width: int | None = None

    @classmethod
    def parse(cls, text: str) -> Growth:
        """From "LAYERS" or "LAYERSxWIDTH". Raises BenchError."""
        layers, times, width = text.partition("x")
        wanted = [layers, width] if times else [layers]
        if not all(part.isascii() and part.isdecimal() and len(part) < 7 for part in wanted):
            raise BenchError(f"'{text}' is no size: write LAYERS or LAYERSxWIDTH, such as 24 or 16x768")
        return cls(int(layers), int(width) if times else None)


@dataclass(frozen=True)
class Shape:
    """(before, after) of layers, residual channels, MLP neurons, and rows of the query and of the key and value projections."""

    layers: tuple[int, int]
    hidden: tuple[int, int]
    neurons: tuple[int, int]
    queries: tuple[int, int]
    keys: tuple[int, int]
    head_dim: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, growth: Growth) -> Shape:
        """Raises BenchError if the architecture is not supported, or the size is smaller than the model or uneven."""
        config, name = checkpoint.config, checkpoint.name
        if config["model_type"] not in FAMILIES:
            raise BenchError(f"'{name}' is a {config['model_type']} model: only {', '.join(FAMILIES)} can be grown")
        layers, hidden, neurons, heads = (
            _size(checkpoint, entry) for entry in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
        )
        key_heads = _size(checkpoint, "num_key_value_heads") if config.get("num_key_value_heads") else heads
        head_dim = _size(checkpoint, "head_dim") if config.get("head_dim") else hidden // heads
        width = hidden if growth.width is None else growth.width
        # heads are added in whole groups of shared keys, in the model's own proportions
        unit = hidden // gcd(hidden, key_heads)
        if width > hidden and config["model_type"] == "qwen3" and config.get("rms_norm_eps", 1e-6) > _LEAST_EPSILON:
            # norms over heads use the same epsilon, which is scaled, but their means do not change
            raise BenchError(f"'{name}' cannot be grown in width: its norms of heads have a larger epsilon than {_LEAST_EPSILON}")
        if not layers <= growth.layers <= MOST_LAYERS:
            raise BenchError(f"'{name}' has {layers} layers: it can be grown to {layers} up to {MOST_LAYERS} of them")
        if width < hidden or width % unit:
            raise BenchError(f"'{name}' is {hidden} wide: it can be grown to larger multiples of {unit}")

        def widened(size: int) -> int:
            return size * width // hidden

        return cls(
            (layers, growth.layers),
            (hidden, width),
            (neurons, widened(neurons)),
            (heads * head_dim, widened(heads) * head_dim),
            (key_heads * head_dim, widened(key_heads) * head_dim),
            head_dim,
        )

    @property
    def share(self) -> float:
        """Number of old channels over new ones."""
        return self.hidden[0] / self.hidden[1]

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        """config.json of the grown model."""
        new = {
            **config,
            "num_hidden_layers": self.layers[1],
            "hidden_size": self.hidden[1],
            "intermediate_size": self.neurons[1],
            "num_attention_heads": self.queries[1] // self.head_dim,
            "num_key_value_heads": self.keys[1] // self.head_dim,
            "head_dim": self.head_dim,
            "rms_norm_eps": config.get("rms_norm_eps", 1e-6) * self.share,
        }
        if isinstance(kinds := config.get("layer_types"), list):
            new["layer_types"] = kinds + kinds[-1:] * (self.layers[1] - self.layers[0])
        if self.share < 1:
            # scaled norm weights need more precision than half precision has
            new["dtype"] = "float32"
        return new

    def after(self, name: str, before: tuple[int, ...]) -> tuple[int, ...]:
        """The new shape of the tensor `name` with the old shape `before`."""
        module = name.split(".")[-2]
        if module in ("q_norm", "k_norm"):
            return before
        rows = {
            "q_proj": self.queries[1],
            **dict.fromkeys(("k_proj", "v_proj"), self.keys[1]),
            **dict.fromkeys(("gate_proj", "up_proj"), self.neurons[1]),
            **dict.fromkeys(("embed_tokens", "lm_head"), before[0]),
        }
        columns = {"o_proj": self.queries[1], "down_proj": self.neurons[1]}
        sides = (rows.get(module, self.hidden[1]), columns.get(module, self.hidden[1]))
        return sides[: len(before)]


def _size(checkpoint: Checkpoint, entry: str) -> int:
    value = checkpoint.config.get(entry)
    if type(value) is not int or value < 1:
        raise BenchError(f"'{checkpoint.path / 'config.json'}' does not state {entry}")
    return value
