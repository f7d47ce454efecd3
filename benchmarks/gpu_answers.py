"""Whole answers on a GPU: through the engine, with and without drafts, and through transformers for comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from paceline.clock import now
from paceline.params import SamplingParams

GROWN, TOKENS, TURNS = "24x2304", 128, 3
SMALLER = 'model:"paceline-14m-draft",depth=5'
DRAFTS = ("none", "ngram", SMALLER, "auto")
BATCHES, MANY = (4, 16), ("none", SMALLER, "auto")
ASKED, BESIDE_TURNS = 2, 2
"""Prompts of each kind, and turns of the comparison with transformers, which is slow."""
READY, RECORDED_S = (2, 10), 1e-3
"""Fewest and most warm-up rounds of answers; they end once a round spends less than this many seconds on recording."""


class Answers:
    """The embedded model, and one grown from it, which is made once, on first use."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._is_grown = False

    def of_the_embedded(self, temperature: float) -> list[dict[str, Any]]:
        return _told(lambda: [*answered("paceline-14m", None, temperature)])

    def of_the_grown(self, temperature: float) -> list[dict[str, Any]]:
        return _told(lambda: [*answered(self._grown(), "fp16", temperature)])

    def beside_transformers(self) -> list[dict[str, Any]]:
        return _told(lambda: [*beside_transformers(self._grown())])

    def _grown(self) -> str:
        from paceline.bench.grow import grown
        from paceline.bench.grow_shape import Growth
        from paceline.models.load import resolve

        if not self._is_grown:
            grown(resolve("paceline-14m"), Path(self._folder.name), Growth.parse(GROWN))
            self._is_grown = True
        return self._folder.name


def _told(measured: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The measurements, or the error."""
    try:
        return measured()
    # on any error, earlier measurements must not be lost
    except Exception as error:
        return [{"failed": f"{type(error).__name__}: {error}"}]


def answered(model: str, weights: str | None, temperature: float) -> Iterator[dict[str, Any]]:
    """One model with and without drafts, in turns; each first answers all prompts until its steps are recorded."""
    from paceline import LLM

    llm = LLM(model, "none", weights=weights, batch=max(BATCHES))
    prompts = _prompts()
    params = SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=1, ignore_eos=True)
    yield from _in_turns(llm, model, DRAFTS, prompts, params, 1)
    for batch in BATCHES:
        yield from _in_turns(llm, model, MANY, (prompts * 4)[:batch], params, batch)


def _in_turns(
    llm: Any, model: str, drafts: tuple[str, ...], prompts: list[str], params: SamplingParams, batch: int
) -> Iterator[dict[str, Any]]:
    answers, times = dict[str, list[Any]](), dict[str, list[float]]()

    def answer() -> list[Any]:
        return llm.generate(prompts, params) if batch > 1 else [llm.generate(prompt, params)[0] for prompt in prompts]

    for _ in range(TURNS):
        for draft in drafts:
            llm.use(draft)
            _get_ready(answer)
            began = perf_counter()
            answers[draft] = answer()
            times.setdefault(draft, []).append(perf_counter() - began)
    plain = answers["none"]
    for draft, found in answers.items():
        took = median(times[draft])
        told = {
            "model": _named(model), "weights": llm.target.held, "weights_bytes": llm.target.weights_bytes,
            "road": type(llm.target).__name__, "recorded": getattr(llm.target, "_recordable", False),
            "temperature": params.temperature, "draft": draft, "batch": batch, "answers": len(prompts),
            "equal": sum(a.token_ids == b.token_ids for a, b in zip(plain, found, strict=True)),
            "tau": sum(len(one.token_ids) for one in found) / sum(len(one.token_ids) / one.speculation.tau for one in found),
            "tokens_per_s": sum(len(one.token_ids) for one in found) / took, "seconds": times[draft],
            "over_none": median(times["none"]) / took,
        }  # fmt: skip
        print(json.dumps(told))
        yield told


def _get_ready(answer: Callable[[], object]) -> None:
    """Answer until nothing more is recorded: recording takes longer than the answers that are timed."""
    for turn in range(READY[1]):
        # the engine's clock stands still while it records
        stood_s = perf_counter() - now()
        answer()
        if turn + 1 >= READY[0] and perf_counter() - now() - stood_s < RECORDED_S:
            return


def _prompts() -> list[str]:
    from paceline.engine.prompts import PROMPTS

    return [*PROMPTS["e2e"][:ASKED], *PROMPTS["sql"][:ASKED]]


def _named(model: str) -> str:
    return model if model == "paceline-14m" else f"paceline-14m grown to {GROWN}"


def beside_transformers(folder: str) -> Iterator[dict[str, Any]]:
    """The grown model in transformers' `generate` by default settings, plain and with its drafts, in turns with the engine."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, __version__ as version

    from paceline import LLM
    from paceline.models.load import resolve

    def loaded(path: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16, local_files_only=True).eval().to("cuda")
        model.generation_config = GenerationConfig(pad_token_id=0)
        return model

    llm, other, smaller = LLM(folder, "none", weights="fp16"), loaded(folder), loaded(str(resolve("paceline-14m-draft")))
    texts, params = _prompts(), SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    prompts = [llm.encode(text) for text in texts]

    def ours(draft: str) -> list[list[int]]:
        return [llm.generate(text, params)[0].token_ids for text in texts]

    def theirs(mode: str) -> list[list[int]]:
        options: dict[str, Any] = {"prompt lookup": {"prompt_lookup_num_tokens": 5}, "assisted": {"assistant_model": smaller}}
        found = []
        for prompt in prompts:
            ids = torch.tensor([prompt], device="cuda")
            given = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": TOKENS}
            found.append(other.generate(ids, **given, **options.get(mode, {}))[0, len(prompt) :].tolist())
        return found

    ways = [("paceline", mode, ours) for mode in MANY]
    ways += [(f"transformers {version}", mode, theirs) for mode in ("plain", "prompt lookup", "assisted")]
    answers, times = dict[tuple[str, str], list[list[int]]](), dict[tuple[str, str], list[float]]()
    for _ in range(BESIDE_TURNS):
        for engine, mode, answer in ways:
            if answer is ours:
                llm.use(mode)
            answer(mode)
            torch.cuda.synchronize()
            began = perf_counter()
            answers[engine, mode] = answer(mode)
            times.setdefault((engine, mode), []).append(perf_counter() - began)
    plain = answers["paceline", "none"]
    for (engine, mode), found in answers.items():
        told = {
            "model": _named(folder), "engine": engine, "mode": mode, "answers": len(texts), "seconds": times[engine, mode],
            "equal": sum(one == other for one, other in zip(plain, found, strict=True)),
            "tokens_per_s": sum(map(len, found)) / median(times[engine, mode]),
        }  # fmt: skip
        print(json.dumps(told))
        yield told
