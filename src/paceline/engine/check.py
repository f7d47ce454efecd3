"""Check: is speculation lossless here? Run plain and speculative decoding and compare token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass

import torch

from paceline.engine.llm import LLM, Completion, Prompt
from paceline.noise import gumbel
from paceline.params import SamplingParams
from paceline.sampling import Context, target_scores
from paceline.sequence import Sequence

NEAR_TIE = 1e-5
"""On the transformers road the rows of a forward may differ in the last bits by its shape; a smaller gap is such a tie."""


@dataclass(frozen=True)
class Divergence:
    """Where two runs part: index among the generated tokens, both tokens (-1: that run had ended), and how far apart the
    target held them (noised scores where sampled)."""

    position: int
    plain: int
    speculative: int
    logit_gap: float

    @property
    def near_tie(self) -> bool:
        return self.logit_gap < NEAR_TIE


@dataclass(frozen=True)
class Comparison:
    """One prompt at one temperature, decoded twice."""

    prompt: Prompt
    temperature: float
    plain: Completion
    speculative: Completion
    divergence: Divergence | None


def compare(llm: LLM, draft: str, prompts: Many[Prompt], params: SamplingParams) -> Iterator[Comparison]:
    """Decode every prompt plainly, then with `draft`, under the same seed (0 unless given). Leaves `llm` with that drafter."""
    if params.seed is None:
        params = params.model_copy(update={"seed": 0})
    llm.use("none")
    plain = [llm.generate(prompt, params)[0] for prompt in prompts]
    llm.use(draft)
    for prompt, one in zip(prompts, plain, strict=True):
        other = llm.generate(prompt, params)[0]
        yield Comparison(prompt, params.temperature, one, other, _divergence(llm, prompt, params, one, other))


def _divergence(
    llm: LLM, prompt: Prompt, params: SamplingParams, plain: Completion, speculative: Completion
) -> Divergence | None:
    left, right = plain.token_ids, speculative.token_ids
    if left == right:
        return None
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    ours, theirs = (ids[at] if at < len(ids) else -1 for ids in (left, right))
    gap = float("inf")
    if ours >= 0 and theirs >= 0:
        sequence = Sequence(0, tuple(llm.encode(prompt)), params, plain.seed, llm.engine.stop_ids(params))
        sequence.commit(tuple(left[:at]), ("",) * at)
        logits = llm.target.logits_after([(sequence, tuple(sequence.tokens))], llm.target.new_cache())[0]
        pair = torch.tensor([ours, theirs])
        scores = target_scores(logits, Context(sequence))[pair].double()
        if params.temperature > 0:
            scores += gumbel(sequence.seed, len(sequence.tokens), pair)
        gap = float((scores[0] - scores[1]).abs())
    return Divergence(at, ours, theirs, gap)


def verdict(comparisons: Many[Comparison]) -> str:
    """Says `lossless`, `not lossless`, or `inconclusive`: at some temperature nothing was accepted, or only near-ties differ."""
    parted = [c.divergence for c in comparisons if c.divergence is not None]
    if any(not divergence.near_tie for divergence in parted):
        return "not lossless"
    accepted: dict[float, int] = {}
    for c in comparisons:
        accepted[c.temperature] = accepted.get(c.temperature, 0) + c.speculative.speculation.accepted_tokens
    if parted or not all(accepted.values()):
        return "inconclusive"
    return "lossless"
