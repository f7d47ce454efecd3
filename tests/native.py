"""The native backend in tests: checkpoints of every family in which every tensor matters, and plain decoding to compare with."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence as Many
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from paceline.kernels.native.threads import CONTENTION
from paceline.machine import most_threads
from paceline.models.load import load_model
from paceline.models.native import NativeModel
from paceline.step import Verdict
from paceline.tree import DraftTree
from stepping import missing, score, sequence
from tiny import tiny_model

FORMATS = ("fp32", "fp16", "bf16", "w16a16", "int8", "int4", "w8a8", "w4a8")
THREADS = (1, 2) if most_threads() > 1 else (1,)


def checkpoint(folder: Path, kind: str = "llama", seed: int = 0, **over: Any) -> tuple[Path, Any]:
    """A saved model without a tokenizer, and its transformers model. Norms and biases are far from their initial values."""
    reference = tiny_model(kind, seed, **over)
    noise = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.4)
    reference.save_pretrained(folder)
    return folder, reference


def with_half_keys(reference: Any) -> Any:
    """The transformers model with keys and values rounded to float16 before attention, as a float16 cache stores them."""

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        eager = sys.modules[type(module).__module__].eager_attention_forward
        return eager(module, query, key.half().float(), value.half().float(), mask, **options)

    AttentionInterface.register("half_keys", attention)
    AttentionMaskInterface.register("half_keys", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    reference.config._attn_implementation = "half_keys"
    return reference


def rewritten(folder: Path, **tensors: torch.Tensor | None) -> Path:
    """Replace tensors of a checkpoint; None removes one."""
    file = folder / "model.safetensors"
    held = {name: tensor for name, tensor in {**load_file(file), **tensors}.items() if tensor is not None}
    save_file(held, file, metadata={"format": "pt"})
    return folder


def native(folder: Path, weights: str | None = None) -> NativeModel:
    model = load_model(folder, weights=weights)
    assert type(model) is NativeModel
    return model


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Forwards run on `count` threads, though models are too small to benefit from more than one, or the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("paceline.models.native._BYTES_PER_THREAD", 1)
            patch.setattr(CONTENTION, "allowed", lambda threads: threads)
            yield
    finally:
        torch.set_num_threads(before)


class Plain:
    """Logits of a text decoded token by token on one thread, one row per forward. Results are kept: texts share prefixes."""

    def __init__(self, model: NativeModel) -> None:
        self._model, self._known = model, dict[tuple[int, ...], torch.Tensor]()
        self._cache, self._fed = model.new_cache(), tuple[int, ...]()

    def after(self, tokens: Many[int]) -> torch.Tensor:
        """float32 [V]."""
        text = tuple(tokens)
        if text not in self._known:
            shared = 0
            while shared < min(len(text) - 1, len(self._fed)) and text[shared] == self._fed[shared]:
                shared += 1
            self._cache.truncate(0, shared)
            with threads(1):
                for end in range(shared + 1, len(text) + 1):
                    root = DraftTree.root(text[end - 1])
                    feed = missing(self._cache, sequence(0, text[:end]), root)
                    self._known[text[:end]] = score(self._model, self._cache, [feed]).logits[0].clone()
                    self._cache.commit([Verdict()])
            self._fed = text
        return self._known[text]


def random_tree(draw: random.Random, root: int, nodes: int, vocabulary: int) -> DraftTree:
    """A tree of any shape: the parent of every node is any earlier node."""
    tokens, parents, seen = [root], [-1], set[tuple[int, int]]()
    while len(tokens) < nodes:
        edge = (draw.randrange(len(tokens)), draw.randrange(vocabulary))
        if edge not in seen:
            seen.add(edge)
            parents.append(edge[0])
            tokens.append(edge[1])
    return DraftTree(tuple(tokens), tuple(parents))


def texts(committed: Many[int], tree: DraftTree) -> Iterable[list[int]]:
    """The text of each node of a tree, its own token included; `committed` ends with the root."""
    for node in range(len(tree)):
        yield [*committed, *(tree.tokens[step] for step in tree.path(node))]
