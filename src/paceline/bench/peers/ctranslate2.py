"""CTranslate2: `Generator.generate_batch` on its own conversion of the checkpoint. It has no speculation of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence as Many
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.bench.contest import Decoded
from paceline.bench.peers.base import Material, Mode, Peer
from paceline.bench.peers.gguf_file import FORMATS
from paceline.models.quiet import quiet


class CTranslate2(Peer):
    name = "ctranslate2"

    def __init__(self, material: Material) -> None:
        import ctranslate2  # pyright: ignore[reportMissingImports]

        self.version = ctranslate2.__version__
        # on a CPU it computes half precision in float32, and does not support 4-bit weights
        self.weights = "int8" if FORMATS[material.weights].startswith("Q") else "float32"
        folder = material.work / f"{material.target.name}-ctranslate2-{self.weights}"
        if not folder.exists():
            with quiet():
                converter = ctranslate2.converters.TransformersConverter(str(material.target))
                converter.convert(str(folder), quantization=self.weights)
            _name_tokens(folder / "config.json")
        self._tokens = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._ends = sorted(material.ends)
        self._generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type=self.weights, inter_threads=1, intra_threads=material.threads
        )

    def modes(self) -> dict[str, Callable[[], Mode]]:
        return {"plain": lambda: self._decode}

    def _decode(self, prompt: Many[int], max_tokens: int) -> Decoded:
        first_s = 0.0

        def step(result: Any) -> bool:
            nonlocal first_s
            first_s = first_s or perf_counter()
            return False

        began = perf_counter()
        (out,) = self._generator.generate_batch(
            [[self._tokens[token] for token in prompt]],
            max_length=max_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=self._ends,
            callback=step,
        )
        total_s = perf_counter() - began
        return Decoded(out.sequences_ids[0], first_s - began, 1, total_s)


def _name_tokens(file: Path) -> None:
    """Write "" for special tokens that the checkpoint lacks: the converter writes null, which the reader refuses."""
    config = json.loads(file.read_text(encoding="utf-8"))
    named = {key: value or "" for key, value in config.items() if key.endswith("_token")}
    file.write_text(json.dumps({**config, **named}), encoding="utf-8")


def load(material: Material) -> Peer:
    return CTranslate2(material)
