"""Taps: hidden states captured during the target's forward pass, for drafters that need them (Medusa, EAGLE, early exits).

Tap i is the input of decoder layer i; for i equal to the number of layers, it is the output of the last one, before the final
norm. Hooks are attached for one forward pass only, so that a model carries none otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from paceline.models.base import ModelError


def decoder_layers(model: Any) -> torch.nn.ModuleList:
    """The list of decoder layers of a transformers model. Raises ModelError if none is found."""
    text = model.config.get_text_config()
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    # LongCat has two attentions per layer, and counts these as hidden layers
    for count in (getattr(text, name, 0) for name in ("num_hidden_layers", "num_layers")):
        for layers in lists:
            if len(layers) == count:
                return layers
    raise ModelError(f"{type(model).__name__} has no list of decoder layers to tap")


def check_tap(index: int, layers: int) -> None:
    """Raise ModelError if a model of so many layers has no tap of this index."""
    if not 0 <= index <= layers:
        raise ModelError(f"layer {index} cannot be tapped: the model has layers 0 to {layers}")


@contextmanager
def tapped(layers: torch.nn.ModuleList, wanted: Iterable[int]) -> Iterator[dict[int, torch.Tensor]]:
    """Fill and yield a dict, layer index -> [1, T, hidden], while the model runs inside the block."""
    taps: dict[int, torch.Tensor] = {}

    def entering(index: int) -> Any:
        def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            taps[index] = args[0] if args else kwargs["hidden_states"]

        return hook

    def leaving(index: int) -> Any:
        def hook(_: torch.nn.Module, __: Any, output: Any) -> None:
            taps[index] = output[0] if isinstance(output, tuple) else output

        return hook

    with ExitStack() as stack:
        for index in wanted:
            check_tap(index, len(layers))
            if index < len(layers):
                handle = layers[index].register_forward_pre_hook(entering(index), with_kwargs=True)
            else:
                handle = layers[-1].register_forward_hook(leaving(index))
            stack.callback(handle.remove)
        yield taps
