"""Whole answers on a GPU, through the engine, with drafts and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from paceline.params import SamplingParams

GROWN, DRAFTS, TURNS = "24x2304", ("none", "ngram", "auto"), 3


def through_the_engine() -> list[dict[str, Any]]:
    """Answers of the embedded model, and of one that was grown from it; what failed, where something does."""
    try:
        from paceline.bench.grow import grown
        from paceline.bench.grow_shape import Growth
        from paceline.models.load import resolve

        with TemporaryDirectory() as folder:
            grown(resolve("paceline-14m"), Path(folder), Growth.parse(GROWN))
            return [*answered("paceline-14m", None), *answered(folder, "fp16")]
    # whatever it is, what was measured before is not lost
    except Exception as error:
        return [{"failed": f"{type(error).__name__}: {error}"}]


def answered(model: str, weights: str | None) -> Iterator[dict[str, Any]]:
    """One model with and without drafts, in turns; each has answered all prompts once before."""
    from paceline import LLM
    from paceline.engine.prompts import PROMPTS

    llm = LLM(model, "none", weights=weights)
    prompts = [*PROMPTS["e2e"], *PROMPTS["sql"]]
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=128, temperature=temperature, seed=1, ignore_eos=True)
        answers, times = dict[str, list[Any]](), dict[str, list[float]]()
        for _ in range(TURNS):
            for draft in DRAFTS:
                llm.use(draft)
                for prompt in prompts:
                    llm.generate(prompt, params)
                began = perf_counter()
                answers[draft] = [llm.generate(prompt, params)[0] for prompt in prompts]
                times.setdefault(draft, []).append(perf_counter() - began)
        plain = answers["none"]
        for draft, found in answers.items():
            took = median(times[draft])
            told = {
                "model": "paceline-14m" if weights is None else f"paceline-14m grown to {GROWN}",
                "weights": llm.target.held, "weights_bytes": llm.target.weights_bytes, "road": type(llm.target).__name__,
                "recorded": getattr(llm.target, "_recordable", False), "temperature": temperature, "draft": draft,
                "answers": len(prompts), "equal": sum(a.token_ids == b.token_ids for a, b in zip(plain, found, strict=True)),
                "tau": sum(len(one.token_ids) for one in found) / sum(len(one.token_ids) / one.speculation.tau for one in found),
                "tokens_per_s": sum(len(one.token_ids) for one in found) / took, "seconds": times[draft],
                "over_none": median(times["none"]) / took,
            }  # fmt: skip
            print(json.dumps(told))
            yield told
