"""transformers: `generate`, plain, with prompt lookup, and assisted by the draft model, in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from paceline.bench.contest import Decoded
from paceline.bench.peers.base import Material, Mode, Peer
from paceline.engine.measure import some_tokens
from paceline.models.checkpoint import name_of
from paceline.models.quiet import quiet

_LOOKED_UP_TOKENS = 5


class Transformers(Peer):
    """weights: always float32, which is fastest for `generate` on a CPU."""

    name, weights = "transformers", "fp32"

    def __init__(self, material: Material) -> None:
        self.version = version("transformers")
        self.options = {"looked up": f"{_LOOKED_UP_TOKENS} tokens"}
        if material.draft is not None:
            self.options["draft"] = "its own schedule"
        self._material = material
        self._model = _loaded(material.target, material.ends)

    def modes(self) -> dict[str, Callable[[], Mode]]:
        found: dict[str, Callable[[], Mode]] = {
            "plain": lambda: self._mode({}),
            "prompt lookup": lambda: self._mode({"prompt_lookup_num_tokens": _LOOKED_UP_TOKENS}),
        }
        if (draft := self._material.draft) is not None:
            found["assisted"] = lambda: self._assisted(draft)
        return found

    def forward(self, context: int) -> Callable[[int], float]:
        from transformers import DynamicCache

        tokens = torch.tensor([some_tokens(context + 64, self._model.config.vocab_size)])
        cache = DynamicCache(config=self._model.config)

        if context:
            with torch.inference_mode():
                self._model(tokens[:, :context], past_key_values=cache, use_cache=True)

        @torch.inference_mode()
        def run(rows: int) -> float:
            began = perf_counter()
            self._model(tokens[:, context : context + rows], past_key_values=cache, use_cache=True)
            seconds = perf_counter() - began
            cache.crop(-rows)
            return seconds

        return run

    def _assisted(self, folder: Path) -> Mode:
        draft = _loaded(folder, self._material.ends)
        rows, own = (model.config.get_text_config().vocab_size for model in (self._model, draft))
        if rows != own:
            # both use the same tokenizer, but with different padding of the vocabulary
            raise ValueError(f"its assistant must have as many tokens as the model, {rows}, and '{name_of(folder)}' has {own}")
        return self._mode({"assistant_model": draft})

    def _mode(self, options: dict[str, Any]) -> Mode:
        def decode(prompt: Many[int], max_tokens: int) -> Decoded:
            ids = torch.tensor([list(prompt)])
            clock = _Clock(len(prompt))
            with quiet():
                began = perf_counter()
                out = self._model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=max_tokens,
                    stopping_criteria=[clock],
                    **options,
                )
                total_s = perf_counter() - began
            return Decoded(out[0, len(prompt) :].tolist(), clock.first_s - began, clock.first_tokens, total_s)

        return decode


class _Clock:
    """A stopping criterion that never stops, and records when the first tokens came."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self.first_s, self.first_tokens = 0.0, 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if not self.first_tokens:
            self.first_s, self.first_tokens = perf_counter(), input_ids.shape[1] - self._prompt_tokens
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def _loaded(folder: Path, ends: frozenset[int]) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig

    with quiet():
        model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True).eval()
    # the checkpoint's own may set penalties, beams and lengths, which the other engines do not use
    model.generation_config = GenerationConfig(eos_token_id=sorted(ends) or None, pad_token_id=0)
    return model


def load(material: Material) -> Peer:
    return Transformers(material)
