"""LLM: the library's front door. Load a model once, generate or stream with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from paceline.compose import automatic, build_drafter, build_policy, build_verifier, exactness
from paceline.drafters.base import Surroundings
from paceline.engine.engine import Engine, Progress, RequestError
from paceline.engine.scheduler import Limits
from paceline.models.base import WEIGHTS, LanguageModel, ModelError
from paceline.models.embedded import default_model
from paceline.models.load import load_model, resolve
from paceline.models.tokenizer import Tokenizer
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence, Speculation
from paceline.speculative import Speculative
from paceline.verifiers.base import Exactness

Prompt = str | Many[int]


@dataclass(frozen=True)
class Completion:
    """One finished answer. token_ids: the generated tokens only. sources: per token the drafter that proposed it, or ""."""

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    seed: int
    sources: list[str]
    speculation: Speculation


class LLM:
    """A target model and what drafts for it.

    model: a directory, a Hub id or an embedded name; None for the embedded default. draft: a spec string. verify: the name of
    a rule. lossy: allow rules that change the text or its distribution. weights: the target's format (fp32, bf16, fp16); float32
    on a CPU and the checkpoint's own on a GPU unless given. Raises ModelError, SpecError or UnknownMethod.
    """

    def __init__(
        self,
        model: str | None = None,
        draft: str = "auto",
        *,
        verify: str = "match",
        lossy: bool = False,
        weights: str | None = None,
        batch: int = 8,
        prefill_chunk: int = 512,
        cache_tokens: int = 65536,
    ) -> None:
        self.path = str(resolve(model if model is not None else default_model()))
        if weights is not None and weights not in WEIGHTS:
            raise ModelError(f"weights can be held as {', '.join(WEIGHTS)}, not as '{weights}'")
        self.target: LanguageModel = load_model(self.path, dtype=WEIGHTS[weights] if weights else None)
        self.tokenizer = Tokenizer(self.path)
        self.lossy = lossy
        self.limits = Limits(batch, prefill_chunk, cache_tokens)
        self._verifier = build_verifier(verify)
        self._load = lru_cache(maxsize=4)(lambda path: (load_model(path), Tokenizer(path)))
        self.use(draft)

    def use(self, draft: str) -> None:
        """Change the drafter; the target stays loaded and requests in flight are dropped."""
        self.draft = automatic(self.path) if draft == "auto" else draft
        surroundings = Surroundings(self.target, self.tokenizer, self._load)
        drafter = build_drafter(self.draft, surroundings)
        policy = build_policy("fixed", drafter)
        speculative = Speculative(self.target, drafter, self._verifier, policy)
        self.engine = Engine(speculative, self.tokenizer, self.limits)

    @property
    def draft_name(self) -> str:
        return self.engine.speculative.drafter.name

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: text is tokenised with special tokens added once, ids are taken as they are."""
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def lossless(self, params: SamplingParams) -> Exactness | None:
        """What the answer keeps of plain decoding. Raises RequestError where it keeps nothing and lossy was not asked for."""
        speculative = self.engine.speculative
        kept = exactness(speculative.drafter, speculative.verifier, params)
        if kept is None and not self.lossy:
            raise RequestError(
                f"'{speculative.verifier.name}' is not exact for drafts by '{speculative.drafter.name}' at this temperature;"
                " choose another rule, or allow it with lossy"
            )
        return kept

    def generate(
        self, prompts: Prompt | Many[Prompt], params: SamplingParams | Many[SamplingParams] | None = None
    ) -> list[Completion]:
        """Complete prompts, batched, in the order given. params: one for all, or one each; greedy by default."""
        asked = _listed(prompts)
        chosen = list(params) if isinstance(params, list | tuple) else [params or SamplingParams()] * len(asked)
        if len(chosen) != len(asked):
            raise RequestError(f"{len(asked)} prompts came with {len(chosen)} sets of parameters")
        for one in chosen:
            self.lossless(one)
        sequences = [self.engine.add(self.encode(p), s) for p, s in zip(asked, chosen, strict=True)]
        texts: dict[int, str] = {}
        while self.engine.has_work:
            for progress in self.engine.step():
                if progress.finished:
                    texts[progress.sequence.key] = progress.text
        return [completed(sequence, texts[sequence.key]) for sequence in sequences]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        keep: bool = False,
        after: Sequence | None = None,
    ) -> Iterator[Progress]:
        """One prompt, step by step. The text of each `Progress` only grows; leaving the loop early ends the request.

        keep, after: carry the cache from one answer to the next prompt, as a conversation does (`Engine.add`).
        """
        params = params or SamplingParams()
        self.lossless(params)
        sequence = self.engine.add(self.encode(prompt), params, keep=keep, after=after)
        try:
            while sequence.finish_reason is None:
                yield from (progress for progress in self.engine.step() if progress.sequence is sequence)
        finally:
            self.engine.abort(sequence)


def completed(sequence: Sequence, text: str) -> Completion:
    return Completion(
        text,
        list(sequence.generated),
        sequence.finish_reason or "abort",
        len(sequence.prompt),
        sequence.seed,
        list(sequence.sources),
        sequence.speculation,
    )


def _listed(prompts: Any) -> list[Prompt]:
    """A single prompt, text or token ids, counts as a list of one."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)
