"""OpenVINO GenAI: `LLMPipeline` on the checkpoint in its own format, plain, with prompt lookup, and with the draft model.

It converts to that format itself, from a GGUF file in half precision; for 8 bits NNCF then compresses it as `optimum-cli
--weight-format int8` does, with a scale per output. Without NNCF, and for 4 bits, it reads quantised GGUF, which has a scale per
32 inputs and is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from paceline.bench.contest import Decoded
from paceline.bench.peers.base import Material, Mode, Peer
from paceline.bench.peers.gguf_file import FORMATS, gguf_file

_MODEL = "openvino_model.xml"
_ASSISTANT_TOKENS = 5
_WHOLE_PROMPT = 1 << 16
"""Most tokens in one step: more than any prompt has."""


class OpenVino(Peer):
    """Computes in float32 if fp32 weights were requested, else in the library's preferred precision."""

    name = "openvino"

    def __init__(self, material: Material) -> None:
        import openvino_genai  # pyright: ignore[reportMissingImports]

        self.version = openvino_genai.get_version()
        self._genai, self._material = openvino_genai, material
        self._compresses = material.weights in ("int8", "w8a8") and find_spec("nncf") is not None
        # its GGUF reader accepts no floats wider than half precision
        few = {"Q8_0": "int8", "Q4_0": "int4"}.get(FORMATS[material.weights], "fp16")
        self._format = "fp16" if self._compresses else few
        self.weights = "int8 by output" if self._compresses else FORMATS[self._format]
        self._options: dict[str, Any] = {"INFERENCE_NUM_THREADS": material.threads}
        if material.weights == "fp32":
            self._options["INFERENCE_PRECISION_HINT"] = "f32"
        self.options = {name: str(value) for name, value in self._options.items()}
        self.options["looked up"] = f"{_ASSISTANT_TOKENS} tokens"
        if material.draft is not None:
            self.options["draft"] = f"{_ASSISTANT_TOKENS} tokens"
        self._place = self._exported(material.target, "target")

    def modes(self) -> dict[str, Callable[[], Mode]]:
        assisted = {"num_assistant_tokens": _ASSISTANT_TOKENS}
        found: dict[str, Callable[[], Mode]] = {
            "plain": lambda: self._mode({}, {}),
            "prompt lookup": lambda: self._mode({"prompt_lookup": True}, {**assisted, "max_ngram_size": 3}),
        }
        if (draft := self._material.draft) is not None:
            found["draft model"] = lambda: self._mode({"draft_model": self._draft(draft)}, assisted)
        return found

    def _exported(self, folder: Path, role: str) -> Path:
        """A folder with the model in the library's own format. role: "target" or "draft", since both may have the same name."""
        place = self._material.work / f"{role}-openvino-{self._format}"
        if not place.exists():
            place.mkdir()
            file = gguf_file(folder, place, self._format)
            self._genai.LLMPipeline(str(file), "CPU", enable_save_ov_model=True, **self._options)
            file.unlink()
            if self._compresses:
                _compress(place / _MODEL)
        return place

    def _draft(self, folder: Path) -> Any:
        return self._genai.draft_model(str(self._exported(folder, "draft")), "CPU", **self._options)

    def _scheduling(self) -> Any:
        """The library's setting for one request at a time, but without prefix caching, so that every prompt is computed."""
        scheduling = self._genai.SchedulerConfig()
        scheduling.enable_prefix_caching = False
        scheduling.max_num_batched_tokens = _WHOLE_PROMPT
        return scheduling

    def _mode(self, loading: dict[str, Any], generating: dict[str, Any]) -> Mode:
        import openvino  # pyright: ignore[reportMissingImports]

        pipeline = self._genai.LLMPipeline(
            str(self._place), "CPU", scheduler_config=self._scheduling(), **loading, **self._options
        )
        config = self._genai.GenerationConfig()
        config.do_sample = False
        config.stop_token_ids = set(self._material.ends)
        for name, value in generating.items():
            setattr(config, name, value)

        def decode(prompt: Many[int], max_tokens: int) -> Decoded:
            ids = np.array([prompt], dtype=np.int64)
            inputs = self._genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
            config.max_new_tokens = max_tokens
            began = perf_counter()
            result = pipeline.generate(inputs, config)
            total_s = perf_counter() - began
            return Decoded(list(result.tokens[0]), result.perf_metrics.get_ttft().mean / 1e3, 1, total_s)

        return decode


def _compress(model: Path) -> None:
    """Compress the model's weights, in place, to 8 bits with a scale per output."""
    import nncf  # pyright: ignore[reportMissingImports]
    import openvino  # pyright: ignore[reportMissingImports]

    compressed = nncf.compress_weights(openvino.Core().read_model(str(model)), mode=nncf.CompressWeightsMode.INT8_ASYM)
    part = model.with_name(f"compressed-{model.name}")
    openvino.save_model(compressed, str(part))
    for suffix in (".xml", ".bin"):
        part.with_suffix(suffix).replace(model.with_suffix(suffix))


def load(material: Material) -> Peer:
    return OpenVino(material)
